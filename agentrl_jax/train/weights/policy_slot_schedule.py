"""Schedules: the version that each policy slot serves.

A schedule is a line of the config, one per policy slot:

  fresh                     the learner's newest version; policy slot 0 is this
  every 25                  the newest multiple of 25 updates
  every 25 lag 50           the newest multiple at least 50 updates old
  steps 0,100,400           the newest of these that exists
  steps 300,600 of FOLDER   the same, from the checkpoints of another run

The version depends on the learner's version alone, so a run that was stopped
anywhere serves the same after it resumes. Needs no jax.
"""

import dataclasses
import re

from agentrl_jax.errors import ConfigError

FRESH = "fresh"
_EVERY = re.compile(r"every (\d+)(?: lag (\d+))?")
_STEPS = re.compile(r"steps (\d+(?:, ?\d+)*)(?: of (\S+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySlotSchedule:
  """A parsed line of the config. Steps count optimizer updates."""

  text: str
  every: int = 0  # 0 for a policy slot that is fresh, or has steps of its own
  lag: int = 0  # updates that a version must be old
  steps: tuple[int, ...] = ()
  folder: str = ""  # of another run's checkpoints; "" is this run's

  @property
  def is_fresh(self) -> bool:
    """True if the policy slot follows every update."""
    return not self.every and not self.steps

  def step(self, version: int, *, stride: int = 1) -> int:
    """Returns the step that is served while the learner is at `version`.

    Before any step of the schedule exists, this is the first one of another
    run, or step 0 of this run, the warm start. `stride` counts updates between
    the learner's versions: "every 25" is then the first version from each 25th
    update on.
    """
    if self.is_fresh:
      return version
    if self.steps:
      past = [step for step in self.steps if step <= version]
      return max(past, default=min(self.steps) if self.folder else 0)
    newest = max(version - self.lag, 0) // stride * stride
    return _version_at(newest // self.every * self.every, stride)

  def awaited(self, version: int, *, stride: int = 1) -> set[int]:
    """Returns versions up to `version` that are served later only."""
    if not self.every:
      return set()
    served = self.step(version, stride=stride)
    multiples = range(0, version + 1, self.every)
    steps = {_version_at(step, stride) for step in multiples}
    return {step for step in steps if served < step <= version}


def _version_at(update: int, stride: int) -> int:
  """Returns the learner's first version at or after `update`."""
  return -(-update // stride) * stride


def read_schedules(lines: tuple[str, ...]) -> tuple[PolicySlotSchedule, ...]:
  """Parses one schedule per policy slot. Raises `ConfigError` for others."""
  schedules = tuple(
    _read(policy_slot, line) for policy_slot, line in enumerate(lines)
  )
  if not schedules or not schedules[0].is_fresh:
    raise ConfigError(
      f"cross_policy.policy_slots={lines!r}: policy slot 0 follows the "
      f"learner; begin with {FRESH!r}"
    )
  for policy_slot, schedule in enumerate(schedules[1:], start=1):
    if schedule.is_fresh:
      raise ConfigError(
        f"cross_policy.policy_slots[{policy_slot}] is {FRESH!r}, as policy "
        "slot 0 is: two policy slots of one version hold its weights twice; "
        "raise engine.slots instead"
      )
  return schedules


def _read(policy_slot: int, line: str) -> PolicySlotSchedule:
  if line == FRESH:
    return PolicySlotSchedule(text=line)
  if (match := _EVERY.fullmatch(line)) and int(match[1]):
    lag = int(match[2] or 0)
    return PolicySlotSchedule(text=line, every=int(match[1]), lag=lag)
  if match := _STEPS.fullmatch(line):
    steps = tuple(int(step) for step in match[1].split(","))
    if list(steps) == sorted(set(steps)):
      return PolicySlotSchedule(text=line, steps=steps, folder=match[2] or "")
  raise ConfigError(
    f"cross_policy.policy_slots[{policy_slot}]={line!r} is no schedule; write "
    "'fresh', 'every 25', 'every 25 lag 50', 'steps 0,100,400' or 'steps "
    "300,600 of runs/other/rl', with numbers of updates from 1 (steps from 0) "
    "that grow"
  )
