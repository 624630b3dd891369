"""Writes down one attempt as tokens, exactly as the policy saw and made them.

Sampled ids are kept verbatim. What is appended between two answers is the
rendering of the new messages alone. Nothing is tokenised twice, and
`trajectory` proves it: what was trained on is compared with what the engine was
sent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.data.trajectory import Status, Task, Trajectory, Turn
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import Answer


class Codec(Protocol):
  """Between messages and token ids; `data.chat.ChatCodec` is one."""

  @property
  def stop_tokens(self) -> tuple[int, ...]:
    """Each ends an answer and belongs to it."""
    ...

  def start(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> np.ndarray:
    """The first prompt, tools and the cue to answer included."""
    ...

  def extend(
    self, messages: Sequence[Message], *, ended_by: int | None
  ) -> np.ndarray:
    """What to append after an answer that a stop token ended, or nothing."""
    ...

  def read(self, sampled: np.ndarray) -> Message:
    """The answer that these ids are."""
    ...

  def write(self, message: Message) -> np.ndarray:
    """An answer as ids, its stop token included."""
    ...

  def call_grammar(self, tools: Sequence[Tool], *, choice: str) -> str:
    """Of answers whose calls fit the tools; "auto", or "required" calls."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
  """Which attempt at which task."""

  task: Task
  group_id: str
  number: int
  seed: int


class TokenIdentityError(RuntimeError):
  """What would be trained on is not what was sampled: a bug, so stop."""


class Recorder:
  """The growing record of one attempt."""

  def __init__(
    self, attempt: Attempt, codec: Codec, tools: Sequence[Tool]
  ) -> None:
    self._attempt = attempt
    self._codec = codec
    self._tools = tools
    self.grammar = ""  # what the next answer has to follow; "" is anything
    self._observation = np.empty(0, np.int32)
    self._stream = np.empty(0, np.int32)  # all that the engine was sent or said
    self._turns: list[Turn] = []
    self._transcript: list[Mapping[str, object]] = []
    self._verdict = Step(())

  @property
  def num_turns(self) -> int:
    """Answers so far."""
    return len(self._turns)

  @property
  def prompt(self) -> np.ndarray:
    """All that the next answer follows upon."""
    return np.concatenate([self._stream, self._observation])

  @property
  def new_messages(self) -> tuple[Message, ...]:
    """What the environment has just said."""
    return self._verdict.messages

  def add_observation(self, step: Step) -> None:
    """Notes what the environment says, and what it pays for the last answer."""
    if self._turns:
      paid = step.reward - self._verdict.reward
      self._turns[-1] = dataclasses.replace(self._turns[-1], reward=paid)
    if step.status is Status.RUNNING:
      self._observation = _frozen(self._render(step.messages), np.int32)
    self._transcript += map(message_to_json, step.messages)
    self._verdict = step

  def add_action(self, prompt: np.ndarray, answer: Answer) -> Message:
    """Notes the answer that the engine gave to `prompt`; returns it as text."""
    _check(answer)
    if not np.array_equal(prompt[: len(self._stream)], self._stream):
      raise TokenIdentityError(
        f"{self._attempt}: the prompt of turn {self.num_turns} does not begin"
        " with what was sent and sampled before it; the recorder has a bug"
      )
    turn = Turn(
      observation=self._observation,
      sampled=_frozen(answer.sampled, np.int32),
      behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
      raw_logprob=_frozen(answer.raw_logprob, np.float32),
      version=_frozen(answer.version, np.int32),
      policy_slot=answer.policy_slot,
      grammar=self.grammar,
    )
    self._turns.append(turn)
    self._stream = _frozen(np.concatenate([prompt, turn.sampled]), np.int32)
    self._observation = np.empty(0, np.int32)
    message = self._codec.read(turn.sampled)
    self._transcript.append(message_to_json(message))
    return message

  def _render(self, messages: Sequence[Message]) -> np.ndarray:
    if not self._turns:
      return self._codec.start(messages, self._tools)
    last = int(self._turns[-1].sampled[-1])
    ended_by = last if last in self._codec.stop_tokens else None
    return self._codec.extend(messages, ended_by=ended_by)

  def trajectory(self, status: Status) -> Trajectory:
    """The record, closed, and checked token for token."""
    attempt = self._attempt
    trajectory = Trajectory(
      task=attempt.task,
      group_id=attempt.group_id,
      attempt=attempt.number,
      seed=attempt.seed,
      turns=tuple(self._turns),
      status=status,
      reward=self._verdict.reward,
      metrics=dict(self._verdict.metrics),
      transcript=tuple(self._transcript),
    )
    if not np.array_equal(tokens_of(trajectory), self._stream):
      raise TokenIdentityError(
        f"{attempt}: the turns hold other tokens than the engine was sent and"
        " gave; the recorder has a bug"
      )
    return trajectory


def tokens_of(trajectory: Trajectory) -> np.ndarray:
  """Every token of the attempt in order, as the learner will see them."""
  parts = [
    part for t in trajectory.turns for part in (t.observation, t.sampled)
  ]
  return np.concatenate([np.empty(0, np.int32), *parts])


def _check(answer: Answer) -> None:
  if not len(answer.sampled):
    raise GeneratorFault(
      "the engine answered with no token; at least one is due"
    )
  for name in ("behavior_logprob", "raw_logprob"):
    if not np.isfinite(getattr(answer, name)).all():
      raise GeneratorFault(
        f"the engine answered with a {name} that is not finite; look for NaN"
        " in the weights of policy slot"
        f" {answer.policy_slot}, version {int(answer.version[0])}"
      )


def _frozen(array: np.ndarray, dtype: type) -> np.ndarray:
  copy: np.ndarray = np.array(array, dtype)
  copy.setflags(write=False)
  return copy
