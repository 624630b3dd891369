"""Limits of training episodes that change as the learner's version grows.

As in ScalingInter-RL (arXiv:2509.08755), whose turn budget rises in stages. A
stage is a line of the config, with smaller limits than those of `episode`:

  5 turns until 20
  10 turns 4096 tokens until 40

The first holds for groups that start while the learner is below version 20,
the second below 40, and then those of `episode` do. Evaluations always have
those of `episode`, so that arms with other stages are compared at one horizon.
All episodes of a group have the same limits, their retries included. A stage
depends on the learner's version alone: a run that was stopped has the same
stages after it resumes.
"""

import dataclasses
import functools
import re

from agentrl_jax.controller.episode import EpisodeLimits
from agentrl_jax.data.records import Group, Status, Trajectory
from agentrl_jax.errors import ConfigError

_LINE = re.compile(
  r"(?:(?P<turns>[1-9]\d*) turns? )?(?:(?P<tokens>[1-9]\d*) tokens? )?"
  r"until (?P<until>[1-9]\d*)"
)
# What becomes of an episode that ended at a smaller limit than the last one.
CUT = {
  "score": "it is trained on with the reward of an episode that did not "
  "complete, `advantage.incomplete_reward`",
  "leave_out": "it is not trained on, and the others of its group are compared "
  "without it; of a group that fewer than two would be left of, all stay",
}

_LEAST_COMPARED = 2  # episodes, whose advantages are relative to each other


@dataclasses.dataclass(frozen=True)
class _Stage:
  until: int  # the first version that it does not hold for
  max_turns: int | None  # None: that of `episode`
  max_tokens: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
  """The `curriculum` section of the config."""

  limits: tuple[str, ...]  # a stage each
  cut: str  # of `CUT`

  def __post_init__(self) -> None:
    if self.cut not in CUT:
      raise ConfigError(
        f"curriculum.cut={self.cut!r} is not one of {', '.join(CUT)}"
      )
    untils = [stage.until for stage in self._stages]
    if untils != sorted(set(untils)):
      raise ConfigError(
        f"curriculum.limits={self.limits!r}: the versions after 'until' must "
        "grow from each stage to the next"
      )

  @functools.cached_property
  def _stages(self) -> tuple[_Stage, ...]:
    return tuple(_read(n, line) for n, line in enumerate(self.limits))

  def require_below(self, last: EpisodeLimits) -> None:
    """Raises `ConfigError` for a stage that allows more than `last` does."""
    for line, stage in zip(self.limits, self._stages, strict=True):
      for name in ("max_turns", "max_tokens"):
        most, found = getattr(last, name), getattr(stage, name)
        if found is not None and found > most:
          raise ConfigError(
            f"curriculum.limits has {line!r}, and episode.{name}={most} is "
            "what evaluations have: raise that, or lower this stage"
          )

  def at(self, version: int, last: EpisodeLimits) -> EpisodeLimits:
    """Returns the limits of groups that start while the learner is there.

    `last` is the `episode` section.
    """
    for stage in self._stages:
      if version < stage.until:
        return dataclasses.replace(
          last,
          max_turns=stage.max_turns or last.max_turns,
          max_tokens=stage.max_tokens or last.max_tokens,
        )
    return last

  def trained(
    self, group: Group, limits: EpisodeLimits, last: EpisodeLimits
  ) -> Group:
    """Returns the group as it is trained on, by the rule `cut`."""
    if self.cut == "score" or limits == last:
      return group
    members = group.trajectories
    kept = tuple(t for t in members if not is_cut(t, limits, last))
    if len(kept) < _LEAST_COMPARED:
      return group
    return dataclasses.replace(group, trajectories=kept)


def is_cut(
  trajectory: Trajectory, limits: EpisodeLimits, last: EpisodeLimits
) -> bool:
  """True if `limits` ended the episode where `last` would have let it go on."""
  if trajectory.status is Status.TASK_LIMIT_REACHED:
    return len(trajectory.turns) == limits.max_turns < last.max_turns
  if trajectory.status is Status.AGENT_CONTEXT_LIMIT:
    return limits.max_tokens < last.max_tokens
  return False


def _read(number: int, line: str) -> _Stage:
  match = _LINE.fullmatch(line)
  if not match or not (match["turns"] or match["tokens"]):
    raise ConfigError(
      f"curriculum.limits[{number}]={line!r} is no stage; write '5 turns until "
      "20', '4096 tokens until 20' or '5 turns 4096 tokens until 20', with "
      "whole numbers from 1"
    )
  turns, tokens = match["turns"], match["tokens"]
  return _Stage(
    until=int(match["until"]),
    max_turns=int(turns) if turns else None,
    max_tokens=int(tokens) if tokens else None,
  )
