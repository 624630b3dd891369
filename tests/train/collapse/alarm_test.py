"""Tests of `train.collapse.alarm`: when it begins, ends, and goes on."""

import dataclasses
import json
from unittest import mock

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.data.records import Status
from agentrl_jax.data.tool_calls import Flaw
from agentrl_jax.train.collapse import alarm as alarm_module
from agentrl_jax.train.collapse.alarm import (
  LEARNED,
  AlarmState,
  CollapseAlarm,
  CollapseAlarmConfig,
  Observed,
  advance,
  group_reward_std,
)
from tests.data.records import make_group

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=50
)
config_of = CollapseAlarmConfig
# Fewer batches than in a run.
SHORT = {
  "FIRST_BATCHES": 2,
  "STD_BATCHES": 3,
  "SUCCESS_BATCHES": 4,
  "CALL_BATCHES": 3,
  "ENTROPY_BATCHES": 3,
}


def batch(*rewards, success=0.5):
  """One group for each tuple of rewards; a share succeeds, None says none."""
  rng = np.random.default_rng(0)
  groups = []
  for values in rewards:
    group = make_group(rng, size=len(values))
    members = tuple(
      dataclasses.replace(
        t,
        reward=float(x),
        metrics={}
        if success is None
        else {"success": float(n < success * len(values))},
      )
      for n, (t, x) in enumerate(zip(group.trajectories, values, strict=True))
    )
    groups.append(dataclasses.replace(group, trajectories=members))
  return groups


VARIED, FLAT = batch((0, 1, 0, 1)), batch((1, 1, 1, 1))
FAILED = batch((0, 1, 0, 1), success=0)


SOLVED = batch((1, 1, 1, 1), success=1)


def answering(groups, *calls, task="a", is_cut=False):
  """The groups, each of whose answers has these calls; None: no tools."""
  calls = None if calls == (None,) else calls

  def changed(trajectory):
    turns = [
      dataclasses.replace(turn, calls=calls, is_cut=is_cut)
      for turn in trajectory.turns
    ]
    named = dataclasses.replace(trajectory.task, name=task)
    return dataclasses.replace(trajectory, turns=tuple(turns), task=named)

  return [
    dataclasses.replace(g, trajectories=tuple(map(changed, g.trajectories)))
    for g in groups
  ]


BAD = Flaw.MALFORMED_JSON.value
MUTE = answering(batch((0, 0, 0), success=0))


def watched(batches, config=None, entropy=None, **state):
  """The alarm after each batch: (begins, message)."""
  alarm = CollapseAlarm(config or config_of(), incomplete_reward=-0.2)
  alarm.restore(state)
  found = []
  for update, groups in enumerate(batches, 1):
    alarm.watch(groups, update, entropy)
    found.append((bool(alarm.new), alarm.message))
  return found


class AlarmTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.multiple(alarm_module, **SHORT))

  def test_attempts_that_score_alike(self):
    found = watched([VARIED] * 2 + [FLAT] * 5 + [VARIED] + [FLAT] * 3)
    self.assertEqual(
      [begins for begins, _ in found],
      [False] * 4 + [True] + [False] * 5 + [True],
    )
    held = [bool(message) for _, message in found]
    self.assertEqual(held, [False] * 4 + [True] * 3 + [False] * 3 + [True])
    self.assertRegex(
      found[4][1],
      r"^since update 3 the attempts .* \(mean std 0, below collapse_alarm."
      "std_share=0.1 of the 0.58 of the first 2 batches; success 50 %",
    )

  def test_episodes_that_fail(self):
    found = watched([FAILED] * 3 + [VARIED] + [FAILED] * 4)
    self.assertEqual([b for b, _ in found], [False] * 7 + [True])
    self.assertRegex(found[-1][1], "^since update 5 less than .*=0.01 of the")
    self.assertNotIn("mean std", found[-1][1])

  def test_a_signal_now_and_then_is_no_collapse(self):
    found = watched(
      [FLAT] * 2 + [VARIED] + ([FLAT] * 2 + [VARIED]) * 5,
      config_of(std_share=0.05),
    )
    self.assertFalse(any(message for _, message in found))

  def test_rewards_without_a_success(self):
    noisy = batch((0.31, 0.27, -0.4), (12.0, 7.5), success=None)
    self.assertFalse(any(message for _, message in watched([noisy, []] * 10)))
    zeros = batch((0, 0), (0, 0.5), success=None)
    self.assertIn("less than", watched([zeros] * 4)[-1][1])

  def test_a_share_of_0_leaves_the_rule_out(self):
    found = watched([FLAT] * 20, config_of(std_share=0.0))
    self.assertFalse(any(message for _, message in found))

  def test_learned_tasks_are_no_alarm(self):
    alarm = CollapseAlarm(config_of(action="stop"), incomplete_reward=-0.2)
    said = []
    # Signal and entropy are lost together, as is usual.
    for update, groups in enumerate([VARIED] * 2 + [SOLVED] * 6 + [MUTE] * 2):
      metrics = alarm.watch(groups, update, 1.0 if groups is VARIED else 0.01)
      is_over = groups is MUTE  # all fail: forgotten, and alarms hold at once
      self.assertEqual(
        any(v for k, v in metrics.items() if "coll" in k), is_over
      )
      self.assertEqual(alarm.stops, is_over)
      said += alarm.new.items()
    self.assertEqual([rule for rule, _ in said], [LEARNED, "entropy", "signal"])
    self.assertRegex(said[0][1], r"^since update 2 nearly all .*\(100 %\)")

  def test_calls_that_never_parse(self):
    tried = answering(VARIED, BAD, "unknown tool")
    for batches, held in (
      ([tried] * 5, [False, False, True, True, True]),
      ([tried, tried, answering(VARIED, BAD, "")] * 2, [False] * 6),
      # Read, though refused: the environment may be more lenient.
      ([answering(VARIED, BAD, "wrong arguments")] * 4, [False] * 4),
      # Tools that nobody needs, or that are not offered, are no fault.
      ([answering(VARIED)] * 4, [False] * 4),
      ([answering(SOLVED)] * 4, [False] * 4),
      ([answering(FAILED, None)] * 3, [False] * 3),
      ([[], tried, [], tried, [], tried], [False] * 5 + [True]),
    ):
      found = watched(batches, config_of(std_share=0.0))
      self.assertEqual([bool(message) for _, message in found], held)
    self.assertRegex(
      found[-1][1],
      r"^since update 2 no tool call in the answers to a could be read \(of "
      r"the latest 16: 8 malformed JSON, 8 unknown tool\), though tools",
    )
    mute = watched([MUTE] * 3, config_of(std_share=0.0))[-1][1]
    self.assertRegex(mute, "^since update 1 no answer to a has had a tool call")

  def test_calls_of_one_environment_among_others(self):
    both = answering(VARIED, BAD, task="b") + answering(VARIED, "")
    ((_, message),) = watched([both] * 3)[2:]
    self.assertIn("in the answers to b could", message)
    self.assertNotIn("answers to a", message)

  def test_entropy_that_collapses(self):
    alarm = CollapseAlarm(config_of(), incomplete_reward=-0.2)
    said = []
    for update, entropy in enumerate([1.0, 0.6, *[0.05] * 4, *[0.03] * 4], 1):
      metrics = alarm.watch(VARIED, 2 * update, entropy)
      said += [(update, sentence) for sentence in alarm.new.values()]
    self.assertEqual(metrics["policy/collapsed"], 1.0)
    ((update, sentence),) = said
    self.assertEqual(update, 9)
    self.assertRegex(
      sentence,
      r"^since update 14 the policy's entropy .*share=0.05 of .* first 2 "
      r"batches \(0.03 of 0.8 nats per token; success 50 %\)",
    )

  def test_a_small_spread_is_none_if_it_was_small_before(self):
    close = batch((0.5, 0.51))
    for first, held in ((close, False), (VARIED, True)):
      found = watched([first] * 2 + [close] * 3)
      self.assertEqual(bool(found[-1][1]), held)

  @parameterized.parameters(("off", False, {}), ("warn", False, {0.0, 1.0}))
  def test_only_stop_stops(self, action, stops, collapsed):
    alarm = CollapseAlarm(config_of(action=action), incomplete_reward=-0.2)
    values = set()
    for groups in [VARIED] * 2 + [FLAT] * 5:
      values |= {alarm.watch(groups, 1).get("reward/collapsed")} - {None}
      self.assertEqual(alarm.stops, stops)
    self.assertEqual(values, set(collapsed))

  def test_stop_stops_until_the_rule_holds_no_more(self):
    alarm = CollapseAlarm(config_of(action="stop"), incomplete_reward=-0.2)
    stopped = []
    for groups in [VARIED] * 2 + [FLAT] * 4 + [VARIED]:
      alarm.watch(groups, 1)
      stopped.append(alarm.stops)
    self.assertEqual(stopped, [False] * 4 + [True] * 2 + [False])

  @few_examples
  @hypothesis.given(
    kinds=st.lists(
      st.sampled_from((VARIED, FLAT, FAILED, SOLVED, MUTE, [])), max_size=14
    ),
    cut=st.integers(0, 14),
  )
  def test_a_resumed_run_says_the_same(self, kinds, cut):
    def watched(kinds, alarm, first):
      said = []
      for update, groups in enumerate(kinds, first):
        # A batch without groups makes no update.
        entropy = 0.01 if groups is FLAT else 1.0 if groups else None
        alarm.watch(groups, update, entropy)
        said.append((dict(alarm.new), alarm.message))
      return said

    def new_alarm():
      return CollapseAlarm(config_of(), incomplete_reward=-0.2)

    whole, alarm = watched(kinds, new_alarm(), 1), new_alarm()
    watched(kinds[:cut], alarm, 1)
    state = json.loads(json.dumps(alarm.snapshot()))
    resumed = new_alarm()
    resumed.restore(state)
    self.assertEqual(watched(kinds[cut:], resumed, cut + 1), whole[cut:])

  @few_examples
  @hypothesis.given(
    stds=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=20)
  )
  def test_the_first_batches_are_fixed(self, stds):
    state, config = AlarmState(), config_of()
    for std in stds:
      after = advance(state, config, Observed(std=std, success=1.0))
      if state.num_first == SHORT["FIRST_BATCHES"]:
        self.assertEqual(
          (after.first_std, after.num_first), (state.first_std, state.num_first)
        )
      self.assertLessEqual(after.low_std, state.low_std + 1)
      state = after
    known = [std for std in stds if std is not None]
    self.assertAlmostEqual(state.first_std, sum(known[:2]))


class GroupRewardStdTest(absltest.TestCase):
  def test_is_the_mean_over_groups_of_two_or_more(self):
    found = group_reward_std(batch((0, 1), (1, 1, 1), (0.3,)), -0.2)
    self.assertAlmostEqual(found, np.sqrt(0.5) / 2)
    self.assertIsNone(group_reward_std(batch((0.3,)), -0.2))
    self.assertIsNone(group_reward_std([], -0.2))

  def test_rewards_are_as_trained_on(self):
    (group,) = batch((1, 1))
    first, second = group.trajectories
    first = dataclasses.replace(first, status=Status.TASK_LIMIT_REACHED)
    group = dataclasses.replace(group, trajectories=(first, second))
    self.assertAlmostEqual(
      group_reward_std([group], -0.2), 1.2 / np.sqrt(2), places=6
    )


class NeverASignalTest(parameterized.TestCase):
  @parameterized.product(reward=(0.0, 1.0, 0.1, -0.2), success=(0.0, 1.0))
  def test_one_reward_from_the_first_batch_on(self, reward, success):
    flat = batch((reward,) * 3, (reward,) * 7, success=success)
    found = watched([flat] * 20)
    self.assertEqual([n for n, (begins, _) in enumerate(found) if begins], [9])
    self.assertRegex(
      found[9][1],
      rf"^since update 1 all attempts .* \(their mean is {reward:.3g}, success "
      rf"{100 * success:.0f} %\), so nothing was ever learned: look at",
    )
