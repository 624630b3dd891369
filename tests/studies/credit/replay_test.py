"""Tests of the replay: its turns, their age, and what it refuses."""

import dataclasses

import numpy as np
from absl.testing import absltest

from studies.credit import exact as credit_exact
from studies.credit.replay import Replay, recorded_turns
from tests.studies.credit.exact_test import policy_of, rules_of


def turns_of(version, *, attempts=8, seed=0):
  policy = policy_of(rules_of("questions"))
  episodes = credit_exact.play(
    policy, attempts=attempts, rng=np.random.default_rng(seed)
  )
  return recorded_turns(policy.rules, episodes, version=version), episodes


class RecordedTurnsTest(absltest.TestCase):
  def test_turns_follow_each_other(self):
    turns, episodes = turns_of(version=3, attempts=40)
    self.assertLen(turns, episodes.played_NU.sum())
    np.testing.assert_array_equal(turns.version_N, 3)
    place = 0
    for n, played_U in enumerate(episodes.played_NU):
      for u in range(played_U.sum()):
        self.assertEqual(turns.turn_N[place], u)
        self.assertEqual(turns.set_N[place], episodes.set_NU[n, u])
        self.assertEqual(turns.call_N[place], episodes.call_NU[n, u])
        self.assertEqual(turns.reward_N[place], episodes.reward_NU[n, u])
        last = u == played_U.sum() - 1
        self.assertEqual(turns.ended_N[place], last)
        if not last:
          self.assertEqual(turns.next_set_N[place], episodes.set_NU[n, u + 1])
        place += 1

  def test_no_return_and_no_log_probability_is_kept(self):
    """Those would be of the policy of that version, and of no other."""
    turns, _ = turns_of(version=0)
    self.assertEqual(
      {field.name for field in dataclasses.fields(turns)},
      {
        "turn_N",
        "set_N",
        "call_N",
        "reward_N",
        "ended_N",
        "next_set_N",
        "version_N",
      },
    )


class ReplayTest(absltest.TestCase):
  def test_samples_say_how_old_they_are(self):
    replay = Replay(10_000)
    for version in range(3):
      replay.add(turns_of(version)[0])
    turns, age = replay.sample(np.random.default_rng(0), 3000, version=2)
    self.assertEqual(set(turns.version_N), {0, 1, 2})
    self.assertAlmostEqual(age, (2 - turns.version_N).mean())
    self.assertBetween(age, 0.9, 1.1)

  def test_the_oldest_go_first(self):
    replay, (turns, _) = Replay(70), turns_of(0)
    replay.add(turns)
    replay.add(turns_of(1)[0])
    self.assertLen(replay, 70)
    newest = len(turns_of(1)[0])
    drawn, _ = replay.sample(np.random.default_rng(0), 5000, version=1)
    self.assertAlmostEqual(
      (drawn.version_N == 1).mean(), min(newest / 70, 1), delta=0.03
    )

  def test_after_clearing_all_turns_are_the_present_policys(self):
    replay = Replay(10_000)
    replay.add(turns_of(0)[0])
    replay.clear()
    replay.add(turns_of(1)[0])
    turns, age = replay.sample(np.random.default_rng(0), 100, version=1)
    self.assertEqual((set(turns.version_N), age), ({1}, 0.0))

  def test_refuses_versions_out_of_order(self):
    replay = Replay(10_000)
    replay.add(turns_of(1)[0])
    with self.assertRaisesRegex(ValueError, r"versions \[0\] were added after"):
      replay.add(turns_of(0)[0])
    turns, _ = turns_of(1)
    mixed = dataclasses.replace(turns, version_N=np.arange(len(turns)) + 1)
    with self.assertRaisesRegex(ValueError, "add those of one version"):
      replay.add(mixed)
    with self.assertRaisesRegex(
      ValueError, "turns of version 1, which is later"
    ):
      replay.sample(np.random.default_rng(0), 1, version=0)
