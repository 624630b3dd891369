"""Notices that nothing can be learned any more, and says why in a sentence.

- no signal: the attempts of a group score nearly the same. Of the first batch
  on, or after a fall to a small share of the spread of the first batches;
- no success: nearly no episode succeeds;
- no calls: not one call of an environment's answers can be read;
- no entropy: it fell to a small share of that of the first batches.

Each holds once it has been so for a number of batches in a row. The first two
are the rules that RAGEN stops a run by (arXiv:2504.20073 and 2604.06268); it
asks the second of five evaluations, here training episodes are counted.

A run whose tasks are learned loses signal and entropy, too. That is no alarm:
`LEARNED` is told once instead.

A state machine without clock or files. Its state travels in the checkpoint.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import Group
from agentrl_jax.keys import Section, key
from agentrl_jax.train.advantages import shaped_reward
from agentrl_jax.train.collapse.answers import AnswerCounts, count_answers

ACTIONS = {
  "off": "nothing is watched",
  "warn": "a warning in the log and the report, and a metric",
  "stop": "the same, then a checkpoint, and the run ends",
}
SIGNAL, SUCCESS, CALLS, ENTROPY = "signal", "success", "calls", "entropy"
LEARNED = "learned"  # in place of SIGNAL and ENTROPY
# Metrics that are 1 while alarms hold.
COLLAPSED = {
  "reward/collapsed": (SIGNAL, SUCCESS),
  "calls/collapsed": (CALLS,),
  "policy/collapsed": (ENTROPY,),
}
FIRST_BATCHES = 10  # whose means are the norm
# Batches in a row until an alarm.
STD_BATCHES, SUCCESS_BATCHES, CALL_BATCHES, ENTROPY_BATCHES = 10, 50, 5, 10
_ROUNDING = 1e-12  # of rewards that are equal, relative
# Success from which tasks without a signal are learned, and below which they no
# longer are.
_IS_LEARNED, _IS_FORGOTTEN = 0.9, 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollapseAlarmConfig(Section, section="collapse_alarm"):
  """The `collapse_alarm` section; `configs` explains each key."""

  action: str = key(
    "warn", "stop ends the run with a checkpoint", one_of=ACTIONS
  )
  std_share: float = key(
    0.1,
    "alarm when the mean std of rewards within a group stays below this share "
    "of that of the first 10 batches for 10 batches; 0: no such alarm",
    below=1,
  )
  min_success: float = key(
    0.01,
    "alarm when the share of a batch's episodes that succeed stays below "
    "this for 50 batches; 0: no such alarm",
    below=1,
  )
  entropy_share: float = key(
    0.05,
    "alarm when the policy's entropy stays below this share of its mean over "
    "the first 10 batches for 10 batches; 0: no such alarm",
    below=1,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlarmState:
  """Counts over the batches so far.

  - `first_std` and `first_entropy` are sums over the first `num_first` and
    `num_entropy` batches, at most `FIRST_BATCHES`.
  - `low_std`, `low_success`, `low_entropy` and `unread`, by environment, are
    the latest batches in a row that broke a rule; a batch that does not sets
    the count to 0.
  - `since` has the update of the first of them, by rule.
  - `is_learned` is True while a lost signal is that of learned tasks.
  """

  first_std: float = 0.0
  num_first: int = 0
  low_std: int = 0
  low_success: int = 0
  first_entropy: float = 0.0
  num_entropy: int = 0
  low_entropy: int = 0
  unread: Mapping[str, int] = dataclasses.field(default_factory=dict)
  is_learned: bool = False
  since: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
  """Numbers of one batch; None is unknown."""

  std: float | None
  success: float | None
  entropy: float | None = None
  reward: float = 0.0  # mean
  answers: Mapping[str, AnswerCounts] = dataclasses.field(default_factory=dict)


def advance(
  state: AlarmState, config: CollapseAlarmConfig, seen: Observed
) -> AlarmState:
  """Returns the state after one batch."""
  state = _advance_std(state, config, seen.std)
  state = _advance_entropy(state, config, seen.entropy)
  if seen.success is not None:
    is_low = seen.success < config.min_success
    low_success = state.low_success + 1 if is_low else 0
    state = dataclasses.replace(state, low_success=low_success)
  unread = dict(state.unread)
  for task, counts in seen.answers.items():
    if counts.offered:
      is_bad = _is_unread(counts, seen)
      unread[task] = unread.get(task, 0) + 1 if is_bad else 0
  least = _IS_FORGOTTEN if state.is_learned else _IS_LEARNED
  known = float(state.is_learned) if seen.success is None else seen.success
  is_learned = known >= least and state.first_std > 0
  return dataclasses.replace(state, unread=unread, is_learned=is_learned)


def _advance_std(
  state: AlarmState, config: CollapseAlarmConfig, std: float | None
) -> AlarmState:
  if std is None:
    return state
  is_low = std == 0 and config.std_share > 0
  if state.num_first < FIRST_BATCHES:
    state = dataclasses.replace(
      state, first_std=state.first_std + std, num_first=state.num_first + 1
    )
  else:
    is_low |= std < config.std_share * state.first_std / state.num_first
  return dataclasses.replace(state, low_std=state.low_std + 1 if is_low else 0)


def _advance_entropy(
  state: AlarmState, config: CollapseAlarmConfig, entropy: float | None
) -> AlarmState:
  if entropy is None:
    return state
  if state.num_entropy < FIRST_BATCHES:
    return dataclasses.replace(
      state,
      first_entropy=state.first_entropy + entropy,
      num_entropy=state.num_entropy + 1,
    )
  first = state.first_entropy / state.num_entropy
  is_low = entropy < config.entropy_share * first
  low_entropy = state.low_entropy + 1 if is_low else 0
  return dataclasses.replace(state, low_entropy=low_entropy)


def _is_unread(counts: AnswerCounts, seen: Observed) -> bool:
  """Returns True if no call was read, though one was tried or is missing.

  Answers without calls are a fault only where nothing is learned from them.
  """
  return not counts.readable and bool(
    counts.calls or not (seen.std or seen.success)
  )


class CollapseAlarm:
  """Watches the batches of one run."""

  def __init__(
    self, config: CollapseAlarmConfig, *, incomplete_reward: float
  ) -> None:
    self._config, self._incomplete_reward = config, incomplete_reward
    self._state = AlarmState()
    self._sentences: Mapping[str, str] = {}
    # Sentences by their rule, of those that the latest batch completed.
    self.new: Mapping[str, str] = {}

  @property
  def message(self) -> str:
    """Sentences of the alarms that hold; "" without any."""
    said = [x for rule, x in self._sentences.items() if rule != LEARNED]
    return "; ".join(said)

  @property
  def stops(self) -> bool:
    """True if the run is to end."""
    return bool(self.message) and self._config.action == "stop"

  def watch(
    self, groups: Sequence[Group], update: int, entropy: float | None = None
  ) -> dict[str, float]:
    """Takes the batch that led to version `update`; returns its metrics.

    `entropy` is the policy's, in nats per token; None where no update was made.
    """
    if self._config.action == "off":
      return {}
    played = [t for group in groups for t in group.trajectories]
    seen = Observed(
      std=group_reward_std(groups, self._incomplete_reward),
      success=_success_of(groups),
      entropy=entropy,
      reward=sum(t.reward for t in played) / max(len(played), 1),
      answers=count_answers(played),
    )
    before = self._broken()
    self._state = advance(self._state, self._config, seen)
    since = {
      rule: self._state.since.get(rule, update)
      for rule, (length, _) in self._lengths().items()
      if length
    }
    self._state = dataclasses.replace(self._state, since=since)
    self._sentences = said = self._describe(seen)
    self.new = {rule: said[rule] for rule in said if rule not in before}
    kinds = {rule.partition("/")[0] for rule in said}
    metrics = {
      name: float(not kinds.isdisjoint(rules))
      for name, rules in COLLAPSED.items()
    }
    spread = {} if seen.std is None else {"reward/group_std": seen.std}
    return metrics | spread

  def snapshot(self) -> dict[str, Any]:
    """Returns the state that a resumed run needs, as JSON values."""
    return dataclasses.asdict(self._state)

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a `snapshot`; an empty one starts afresh."""
    self._state = AlarmState(**snapshot)

  def _lengths(self) -> dict[str, tuple[int, int]]:
    """Returns of each rule the batches in a row, and how many are enough."""
    s = self._state
    return {
      SIGNAL: (s.low_std, STD_BATCHES),
      SUCCESS: (s.low_success, SUCCESS_BATCHES),
      ENTROPY: (s.low_entropy, ENTROPY_BATCHES),
      **{
        f"{CALLS}/{task}": (unread, CALL_BATCHES)
        for task, unread in s.unread.items()
      },
    }

  def _broken(self) -> set[str]:
    """Returns the rules that enough batches in a row have broken."""
    broken = {
      rule for rule, (n, enough) in self._lengths().items() if n >= enough
    }
    if self._state.is_learned and not broken.isdisjoint((SIGNAL, ENTROPY)):
      return broken - {SIGNAL, ENTROPY} | {LEARNED}
    return broken

  def _describe(self, seen: Observed) -> dict[str, str]:
    """Returns the sentence of each rule that is broken."""
    say = {
      SIGNAL: self._no_signal,
      SUCCESS: self._no_success,
      CALLS: self._no_calls,
      ENTROPY: self._no_entropy,
      LEARNED: self._learned,
    }
    sentences = {}
    since = self._state.since
    for rule in sorted(self._broken()):
      kind, _, task = rule.partition("/")
      first = min(
        since.get(each, math.inf)
        for each in ((SIGNAL, ENTROPY) if rule == LEARNED else (rule,))
      )
      sentences[rule] = f"since update {first} {say[kind](seen, task)}"
    return sentences

  def _no_signal(self, seen: Observed, task: str) -> str:
    del task
    s, success = self._state, _shown(seen.success)
    if not s.first_std:
      return (
        "all attempts of every group have had the same reward (their mean is "
        f"{seen.reward:.3g}, success {success}), so nothing was ever learned: "
        "look at the kept trajectories and at how the reward is computed, or "
        "take easier tasks if none succeeds, and harder ones if all do"
      )
    return (
      "the attempts of a group have scored nearly the same (mean std "
      f"{seen.std or 0:.2g}, below collapse_alarm.std_share="
      f"{self._config.std_share:g} of the {s.first_std / s.num_first:.2g} of "
      f"the first {s.num_first} batches; success {success}), so nothing is "
      "learned: compare trajectories before and after, and start from an "
      "earlier checkpoint (checkpoint.resume_step) with a lower "
      "optimizer.learning_rate, or take easier tasks if none succeeds"
    )

  def _no_success(self, seen: Observed, task: str) -> str:
    del seen, task
    return (
      "less than collapse_alarm.min_success="
      f"{self._config.min_success:g} of the episodes have succeeded: take "
      "easier tasks or a warm start, or, if they succeeded before, an earlier "
      "checkpoint (checkpoint.resume_step) and a lower optimizer.learning_rate"
    )

  def _no_calls(self, seen: Observed, task: str) -> str:
    counts = seen.answers.get(task)
    if counts is None or not counts.calls:
      problem = f"no answer to {task} has had a tool call"
    else:
      flaws = ", ".join(f"{n} {flaw}" for flaw, n in counts.flaws.items())
      problem = (
        f"no tool call in the answers to {task} could be read (of the latest "
        f"{counts.calls}: {flaws})"
      )
    return (
      f"{problem}, though tools are offered: look in a kept trajectory whether "
      "the prompt shows tools and calls as the model has learned them, or set "
      "sampling.calls=well_formed or required"
    )

  def _no_entropy(self, seen: Observed, task: str) -> str:
    del task
    s = self._state
    return (
      "the policy's entropy has been below collapse_alarm.entropy_share="
      f"{self._config.entropy_share:g} of its mean over the first "
      f"{s.num_entropy} batches ({seen.entropy or 0:.2g} of "
      f"{s.first_entropy / s.num_entropy:.2g} nats per token; success "
      f"{_shown(seen.success)}), so attempts become alike: start from an "
      "earlier checkpoint (checkpoint.resume_step) with a lower "
      "optimizer.learning_rate or some loss.entropy_coefficient"
    )

  def _learned(self, seen: Observed, task: str) -> str:
    del task
    return (
      f"nearly all attempts succeed ({_shown(seen.success)}), and little is "
      "left to learn from them: the tasks are learned; end the run here, or "
      "train on harder ones"
    )


def _shown(success: float | None) -> str:
  return "unknown" if success is None else f"{100 * success:.0f} %"


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
