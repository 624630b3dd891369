"""Decides when another group may start: staleness bounded before the work.

Dropping what turned out too old would throw away the slow groups, which are the
long and hard ones, and bias the data to the easy. So a group starts only if, at
the current pace, it can still be fresh enough when the learner gets to it:

  started < (steps(version + max_staleness) + 1) groups_per_step

Counted are the groups that the learner has had or will have: one that is
dropped gives its place to another. A pure state machine: no clock, no `await`.
"""

import dataclasses

from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
  """The `admission` section of the config."""

  max_staleness: int  # versions between starting a group and taking it
  groups_per_step: int  # that the learner takes at a time
  max_concurrent_groups: int
  versions_per_step: int = 1  # updates that the learner makes of one taking

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      least = 0 if name == "max_staleness" else 1
      if value < least:
        raise ConfigError(
          f"admission.{name} is {value}; it must be at least {least}"
        )


class Admission:
  """Counts groups in and out, and says whether another may start, or why not.

  `num_pending` groups, finished but not yet taken, are carried over by a run
  that resumes at `version`.
  """

  def __init__(
    self, limits: AdmissionLimits, *, version: int = 0, num_pending: int = 0
  ) -> None:
    self._limits = limits
    self._version = version
    taken = version // limits.versions_per_step * limits.groups_per_step
    self._started = taken + num_pending
    self._in_flight = 0

  @property
  def in_flight(self) -> int:
    """Groups started and neither ended nor dropped."""
    return self._in_flight

  @property
  def version(self) -> int:
    """The learner's, as far as is known here."""
    return self._version

  @property
  def bound(self) -> int:
    """How many groups may have started by this version."""
    limits = self._limits
    horizon = self._version + limits.max_staleness
    return (horizon // limits.versions_per_step + 1) * limits.groups_per_step

  def refusal(self) -> str | None:
    """Why no group may start now; None if one may."""
    limits = self._limits
    if self._in_flight >= limits.max_concurrent_groups:
      return (
        f"{self._in_flight} groups are in flight, as many as"
        " admission.max_concurrent_groups allows"
      )
    if self._started >= self.bound:
      return (
        f"{self._started} groups have started, as many as the learner at"
        f" version {self._version} may train on within"
        f" admission.max_staleness = {limits.max_staleness}"
      )
    return None

  def start(self) -> None:
    """A group starts. Asking `refusal` first is the caller's duty."""
    refusal = self.refusal()
    if refusal is not None:
      raise RuntimeError(f"a group was started although {refusal}")
    self._started += 1
    self._in_flight += 1

  def end(self) -> None:
    """A group is in the queue."""
    self._in_flight -= 1

  def lose(self) -> None:
    """A group in flight will never reach the queue: another takes its place."""
    self._in_flight -= 1
    self._started -= 1

  def discard(self, num_groups: int) -> None:
    """Groups were dropped from the queue: others take their places."""
    self._started -= num_groups

  def advance(self, version: int) -> None:
    """The learner has made an update."""
    if version < self._version:
      raise ValueError(
        f"version went from {self._version} back to {version}; versions count"
        " updates and only grow"
      )
    self._version = version
