"""Writes the record of an episode while it is played.

- sampled ids are kept as they came: no text is tokenised twice;
- a prompt begins with all that was sent and sampled before it on its line;
- `Recorder.trajectory` compares the turns, which are trained on, with the
  tokens that the engine was sent and gave, and raises where they differ.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.data.records import EpisodeSpec, Status, Trajectory, Turn
from agentrl_jax.errors import GeneratorFault


class TokenIdentityError(RuntimeError):
  """The tokens to train on differ from those sampled: a bug, so stop."""


class SampledTokens(Protocol):
  """An engine's answer; `rollout.api.Completion` is one."""

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
    self._lines: list[LineRecorder] = []
    self._turns: list[Turn] = []

  @property
  def num_turns(self) -> int:
    """Answers so far, on all lines."""
    return len(self._turns)

  def start_line(self, role: str = "") -> "LineRecorder":
    """Starts a line of tokens, whose first prompt may have any."""
    line = LineRecorder(self._spec, len(self._lines), role, self._turns)
    self._lines.append(line)
    return line

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
    role_rewards: Mapping[str, float] | None = None,
  ) -> Trajectory:
    """Returns the record, checked token for token."""
    roles = tuple(line.role for line in self._lines)
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
      roles=roles if any(roles) else (),
      role_rewards=dict(role_rewards or {}),
    )
    self._require_identity(trajectory)
    return trajectory

  def _require_identity(self, trajectory: Trajectory) -> None:
    sent = [line.stream for line in self._lines if line.num_turns]
    recorded = [line.tokens for line in trajectory.lines]
    if len(sent) != len(recorded) or not all(
      map(np.array_equal, sent, recorded)
    ):
      raise TokenIdentityError(
        f"{self._spec}: the turns hold other tokens than the engine was sent"
        " and gave; the recorder has a bug"
      )


class LineRecorder:
  """The growing record of one line of an episode."""

  def __init__(
    self, spec: EpisodeSpec, number: int, role: str, turns: list[Turn]
  ) -> None:
    """`turns` are the episode's, which the line adds its own to."""
    self.number, self.role = number, role
    self._spec, self._turns = spec, turns
    self._num_turns = 0
    self._observation = np.empty(0, np.int32)
    self._stream = np.empty(0, np.int32)

  @property
  def num_turns(self) -> int:
    """Answers of this line so far."""
    return self._num_turns

  @property
  def stream(self) -> np.ndarray:
    """All tokens that the engine was sent or sampled, up to the last answer."""
    return self._stream

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer."""
    return np.concatenate([self._stream, self._observation])

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
        f"{self._spec}: the prompt of turn {self._num_turns} of line "
        f"{self.number} does not begin with what was sent and sampled before "
        "it; the recorder has a bug"
      )
    turn = Turn(
      observation=self._observation,
      sampled=_frozen(answer.sampled, np.int32),
      behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
      raw_logprob=_frozen(answer.raw_logprob, np.float32),
      version=_frozen(answer.version, np.int32),
      policy_slot=answer.policy_slot,
      grammar=grammar,
      line=self.number,
    )
    self._turns.append(turn)
    self._num_turns += 1
    self._stream = _frozen(np.concatenate([prompt, turn.sampled]), np.int32)
    self._observation = np.empty(0, np.int32)
    return turn


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
