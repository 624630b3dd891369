"""Decides whether another group may start, so that staleness stays bounded.

Dropping groups that turned out too old would drop the slow ones, which are the
long and hard ones, and bias the data to easy tasks. So a group starts only if,
at the current pace, it can still be fresh enough when the learner takes it:

  started < (steps(version + max_staleness) + 1) groups_per_step

`started` counts the groups that the learner has had or will have: a group that
is dropped makes room for another. That may be a group from which nothing can be
learned, up to a bound per step, as in DAPO's dynamic sampling
(arXiv:2503.14476). A pure state machine: no clock, no `await`.
"""

import dataclasses

from agentrl_jax.keys import Section, key


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionLimits(Section, section="admission"):
  """The `admission` section of the config."""

  groups_per_step: int = key(256, "groups of a batch", at_least=1)
  max_staleness: int = key(1, "versions between sampling and training")
  max_concurrent_groups: int = key(256, "groups in play at once", at_least=1)
  versions_per_step: int = key(
    1, "updates that the learner makes of a batch", at_least=1
  )
  refills_per_step: int = key(
    0,
    "groups without a signal that others replace before they are trained on, "
    'per batch; 0: none. With advantage.keep="signal" this is DAPO\'s dynamic '
    "sampling. success/<task> then leaves the replaced groups out, and "
    "rollout/success/<task> does not",
  )


class Admission:
  """Counts groups in and out.

  A run that resumes at `version` carries over `num_pending` groups, which are
  finished and not yet taken.
  """

  def __init__(
    self, limits: AdmissionLimits, *, version: int = 0, num_pending: int = 0
  ) -> None:
    self._limits = limits
    self._version = version
    taken = version // limits.versions_per_step * limits.groups_per_step
    self._started = taken + num_pending
    self._in_flight = 0
    self._refills = 0  # since the step began

  @property
  def in_flight(self) -> int:
    """Groups that have started and neither ended nor been lost."""
    return self._in_flight

  @property
  def version(self) -> int:
    """The learner's version, as last reported by `advance`."""
    return self._version

  @property
  def num_places(self) -> int:
    """Number of groups that may be in flight while the learner waits."""
    limits = self._limits
    ahead = limits.max_staleness // limits.versions_per_step + 1
    return min(limits.max_concurrent_groups, ahead * limits.groups_per_step)

  @property
  def bound(self) -> int:
    """Number of groups that may have started by this version."""
    limits = self._limits
    horizon = self._version + limits.max_staleness
    return (horizon // limits.versions_per_step + 1) * limits.groups_per_step

  def refusal(self) -> str | None:
    """Returns the reason why no group may start now; None if one may."""
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
    """Counts a group that starts. The caller must check `refusal` first."""
    refusal = self.refusal()
    if refusal is not None:
      raise RuntimeError(f"a group was started although {refusal}")
    self._started += 1
    self._in_flight += 1

  def end(self) -> None:
    """Counts a group that has got its place in the queue."""
    self._in_flight -= 1

  def lose(self) -> None:
    """Counts a group that will never be queued: another may take its place."""
    self._in_flight -= 1
    self._started -= 1

  def refill(self) -> bool:
    """Counts a group without a signal as lost, if the step's bound allows it.

    Returns False once `refills_per_step` groups were replaced since the learner
    began its step: the group is then to be queued like others.
    """
    if self._refills >= self._limits.refills_per_step:
      return False
    self._refills += 1
    self.lose()
    return True

  def advance(self, version: int) -> None:
    """Sets the learner's version, after an update."""
    if version < self._version:
      raise ValueError(
        f"version went from {self._version} back to {version}; versions count"
        " updates and only grow"
      )
    per_step = self._limits.versions_per_step
    if version // per_step > self._version // per_step:
      self._refills = 0
    self._version = version
