"""Notices a collapse: attempts that all score the same, or that all fail.

The rules are those that RAGEN stops a run by (arXiv:2504.20073 and 2604.06268):
the spread of rewards within groups falls to a small share of that of the first
batches, or nearly no episode succeeds, for many batches in a row. RAGEN asks
the second of five evaluations; here training episodes are counted. A batch
without any spread breaks the first rule also where the first batches had none:
nothing can be learned from it.

A state machine without clock or files. Its state travels in the checkpoint.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import Group
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.advantages import shaped_reward
from agentrl_jax.train.config.checks import require_one_of

ACTIONS = {
  "off": "nothing is watched",
  "warn": "a warning in the log, and a metric",
  "stop": "the same, then a checkpoint, and the run ends",
}
COLLAPSED = "reward/collapsed"
_ROUNDING = 1e-12  # of rewards that are equal, relative


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollapseAlarmConfig:
  """The `collapse_alarm` section; `configs` explains each key."""

  action: str
  first_batches: int
  std_share: float
  std_batches: int
  min_success: float
  success_batches: int

  def __post_init__(self) -> None:
    require_one_of("collapse_alarm.action", self.action, ACTIONS)
    for name in ("first_batches", "std_batches", "success_batches"):
      if getattr(self, name) < 1:
        raise ConfigError(
          f"collapse_alarm.{name}={getattr(self, name)} must be 1 or more: it "
          "is a number of batches; --config.collapse_alarm.action=off watches "
          "nothing"
        )
    for name in ("std_share", "min_success"):
      if not 0 <= getattr(self, name) < 1:
        raise ConfigError(
          f"collapse_alarm.{name}={getattr(self, name)} must lie in [0, 1): 0 "
          "leaves the rule out"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlarmState:
  """Counts over the batches so far.

  - `first_std` is a sum over the first `num_first` batches, and does not change
    after `first_batches` of them.
  - `low_std` and `low_success` are the latest batches in a row that broke a
    rule; a batch that does not sets the count to 0.
  """

  first_std: float = 0.0
  num_first: int = 0
  low_std: int = 0
  low_success: int = 0


def advance(
  state: AlarmState,
  config: CollapseAlarmConfig,
  *,
  std: float | None,
  success: float | None,
) -> AlarmState:
  """Returns the state after one batch; of None nothing is known."""
  if success is not None:
    low_success = state.low_success + 1 if success < config.min_success else 0
    state = dataclasses.replace(state, low_success=low_success)
  if std is None:
    return state
  is_low = std == 0 and config.std_share > 0
  if state.num_first < config.first_batches:
    state = dataclasses.replace(
      state, first_std=state.first_std + std, num_first=state.num_first + 1
    )
  else:
    is_low |= std < config.std_share * state.first_std / state.num_first
  return dataclasses.replace(state, low_std=state.low_std + 1 if is_low else 0)


class CollapseAlarm:
  """Watches the batches of one run."""

  def __init__(
    self, config: CollapseAlarmConfig, *, incomplete_reward: float
  ) -> None:
    self._config, self._incomplete_reward = config, incomplete_reward
    self._state = AlarmState()
    self._message = ""
    self.begins = False  # whether the latest batch completed a rule

  @property
  def message(self) -> str:
    """Sentence of the broken rules and where to look; "" without any."""
    return self._message

  @property
  def stops(self) -> bool:
    """True if the run is to end."""
    return bool(self._message) and self._config.action == "stop"

  def watch(self, groups: Sequence[Group]) -> dict[str, float]:
    """Takes one batch; returns its metrics."""
    if self._config.action == "off":
      return {}
    std = group_reward_std(groups, self._incomplete_reward)
    success = _success_of(groups)
    before = self._broken()
    self._state = advance(self._state, self._config, std=std, success=success)
    self.begins = bool(self._broken() - before)
    self._message = self._describe(std, success)
    metrics = {COLLAPSED: float(bool(self._message))}
    return metrics if std is None else metrics | {"reward/group_std": std}

  def snapshot(self) -> dict[str, Any]:
    """Returns the state that a resumed run needs, as JSON values."""
    return dataclasses.asdict(self._state)

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a `snapshot`; an empty one starts afresh."""
    self._state = AlarmState(**snapshot)

  def _broken(self) -> set[str]:
    """Returns the rules that enough batches in a row have broken."""
    c, s = self._config, self._state
    rules = {
      "std": s.low_std >= c.std_batches,
      "success": s.low_success >= c.success_batches,
    }
    return {name for name, is_broken in rules.items() if is_broken}

  def _describe(self, std: float | None, success: float | None) -> str:
    c, s = self._config, self._state
    broken, problems = self._broken(), []
    if "std" in broken:
      first = s.first_std / s.num_first
      now = _shown(std, "{:.2g}")
      share = _shown(success and 100 * success, "{:.0f} %")
      problems.append(
        f"for {s.low_std} batches in a row the attempts of a group have scored "
        f"nearly the same: their mean std is {now}, "
        + (
          f"below collapse_alarm.std_share={c.std_share:g} of the {first:.2g}"
          if first
          else "as was that"
        )
        + f" of the first {s.num_first} batches. Success is {share}: near 100 "
        "the tasks are learned, and harder ones are needed; near 0 none is "
        "within reach, and easier ones are needed; else answers have become "
        "alike"
      )
    if "success" in broken:
      problems.append(
        f"for {s.low_success} batches in a row less than collapse_alarm."
        f"min_success={c.min_success:g} of the episodes have succeeded"
      )
    if not problems:
      return ""
    return (
      f"{'; and '.join(problems)}. Look at success/<task>, policy/entropy, "
      "gradient_norm, policy/mutual_information (mutual_information.every=5 "
      "writes it) and at trajectories before and after. A lower "
      "optimizer.learning_rate, or a start from an earlier checkpoint "
      "(checkpoint.resume_step), may help; collapse_alarm.action=off ends "
      "these checks"
    )


def _shown(number: float | None, form: str) -> str:
  return "unknown" if number is None else form.format(number)


def _success_of(groups: Sequence[Group]) -> float | None:
  """Returns the share of episodes that succeeded.

  None if nothing says what a success is: no metric, and no reward that is 0 or
  1, as where rewards have noise or another scale.
  """
  played = [t for group in groups for t in group.trajectories]
  if not any("success" in t.metrics or t.reward in (0, 1) for t in played):
    return None
  return sum(t.is_success for t in played) / len(played)


def group_reward_std(
  groups: Sequence[Group], incomplete_reward: float
) -> float | None:
  """Returns the mean over groups of the unbiased std of their rewards.

  Rewards are as they are trained on; of equal ones, to rounding, the std is 0.
  None without a group of two.
  """
  rewards = [
    [shaped_reward(t, incomplete_reward) for t in group.trajectories]
    for group in groups
    if len(group.trajectories) > 1
  ]
  if not rewards:
    return None
  return float(np.mean([_std(each) for each in rewards]))


def _std(rewards: Sequence[float]) -> float:
  if np.ptp(rewards) <= _ROUNDING * np.max(np.abs(rewards)):
    return 0.0  # np.std of three rewards of 0.1 is 1e-17
  return float(np.std(rewards, ddof=1))
