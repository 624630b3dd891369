"""Records an episode as the token ids that the engine was sent and sampled.

Invariants:
- sampled ids are kept as they came: no text is tokenised twice;
- a prompt begins with all that was sent and sampled before it;
- `Recorder.trajectory` compares the turns, which are trained on, with the
  tokens that the engine was sent and gave, and raises where they differ.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.data.trajectory import EpisodeSpec, Status, Trajectory, Turn
from agentrl_jax.errors import GeneratorFault


class TokenIdentityError(RuntimeError):
  """The tokens to train on differ from those sampled: a bug, so stop."""


class SampledTokens(Protocol):
  """An engine's answer; `rollout.api.Answer` is one."""

  @property
  def sampled(self) -> np.ndarray: ...

  @property
  def behavior_logprob(self) -> np.ndarray: ...

  @property
  def raw_logprob(self) -> np.ndarray: ...

  @property
  def version(self) -> np.ndarray: ...

  @property
  def policy_slot(self) -> int: ...


class Recorder:
  """The growing record of one episode."""

  def __init__(self, spec: EpisodeSpec) -> None:
    self._spec = spec
    self._observation = np.empty(0, np.int32)
    self._stream = np.empty(0, np.int32)
    self._turns: list[Turn] = []

  @property
  def num_turns(self) -> int:
    """Answers so far."""
    return len(self._turns)

  @property
  def stream(self) -> np.ndarray:
    """All tokens that the engine was sent or sampled, up to the last answer."""
    return self._stream

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer."""
    return np.concatenate([self._stream, self._observation])

  @property
  def last_turn(self) -> Turn:
    """The last answer; there must be one."""
    return self._turns[-1]

  def add_observation(self, tokens: np.ndarray) -> None:
    """Records the tokens that come between the last answer and the next."""
    self._observation = _frozen(tokens, np.int32)

  def add_action(
    self, prompt: np.ndarray, answer: SampledTokens, *, grammar: str = ""
  ) -> Turn:
    """Records the answer that the engine gave to `prompt`.

    Raises `GeneratorFault` for an answer without tokens or with
    log-probabilities that are not finite.
    """
    _require_usable(answer)
    if not np.array_equal(prompt[: len(self._stream)], self._stream):
      raise TokenIdentityError(
        f"{self._spec}: the prompt of turn {self.num_turns} does not begin"
        " with what was sent and sampled before it; the recorder has a bug"
      )
    turn = Turn(
      observation=self._observation,
      sampled=_frozen(answer.sampled, np.int32),
      behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
      raw_logprob=_frozen(answer.raw_logprob, np.float32),
      version=_frozen(answer.version, np.int32),
      policy_slot=answer.policy_slot,
      grammar=grammar,
    )
    self._turns.append(turn)
    self._stream = _frozen(np.concatenate([prompt, turn.sampled]), np.int32)
    self._observation = np.empty(0, np.int32)
    return turn

  def set_reward(self, reward: float) -> None:
    """Sets the reward of the last answer, if there is one."""
    if self._turns:
      self._turns[-1] = dataclasses.replace(self._turns[-1], reward=reward)

  def trajectory(
    self,
    status: Status,
    *,
    reward: float,
    metrics: Mapping[str, float],
    transcript: Sequence[Mapping[str, object]],
    policy_slot_weights: tuple[float, ...] = (),
  ) -> Trajectory:
    """Returns the record, checked token for token."""
    trajectory = Trajectory(
      task=self._spec.task,
      group_id=self._spec.group_id,
      attempt=self._spec.attempt,
      seed=self._spec.seed,
      turns=tuple(self._turns),
      status=status,
      reward=reward,
      metrics=dict(metrics),
      transcript=tuple(transcript),
      policy_slot_weights=policy_slot_weights,
    )
    if not np.array_equal(tokens_of(trajectory), self._stream):
      raise TokenIdentityError(
        f"{self._spec}: the turns hold other tokens than the engine was sent"
        " and gave; the recorder has a bug"
      )
    return trajectory


def tokens_of(trajectory: Trajectory) -> np.ndarray:
  """All tokens of a trajectory in order, as the learner sees them."""
  parts = [
    part for t in trajectory.turns for part in (t.observation, t.sampled)
  ]
  return np.concatenate([np.empty(0, np.int32), *parts])


def _require_usable(answer: SampledTokens) -> None:
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
