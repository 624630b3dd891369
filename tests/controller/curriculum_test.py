"""Limits change with the learner's version, and cut episodes by the rule."""

import dataclasses

from absl.testing import absltest, parameterized
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.curriculum import Curriculum, is_cut
from agentrl_jax.controller.episode import EpisodeLimits
from agentrl_jax.data.records import Status
from agentrl_jax.errors import ConfigError
from tests.controller import stage

LAST = EpisodeLimits(max_turns=10, max_tokens=320, max_answer_tokens=64)


def curriculum(*limits, cut="score"):
  return Curriculum(limits=limits, cut=cut)


def allowed(found, version):
  at = found.at(version, LAST)
  return at.max_turns, at.max_tokens


class LimitsTest(parameterized.TestCase):
  def test_each_stage_holds_until_its_version(self):
    found = curriculum("3 turns until 5", "6 turns 100 tokens until 8")
    self.assertEqual(
      [allowed(found, v) for v in (0, 4, 5, 7, 8, 1000)],
      [(3, 320), (3, 320), (6, 100), (6, 100), (10, 320), (10, 320)],
    )

  def test_without_a_stage_nothing_changes(self):
    self.assertEqual(curriculum().at(0, LAST), LAST)

  def test_long_episodes_may_come_first(self):
    found = curriculum("10 turns until 5", "1 turn until 8")
    found.require_below(LAST)
    self.assertEqual([allowed(found, v)[0] for v in (0, 6, 8)], [10, 1, 10])

  @parameterized.parameters(
    "5 turns",
    "until 5",
    "0 turns until 5",
    "5 turns until 0",
    "-5 turns until 3",
    "5 rounds until 3",
    "5 turns until 3 ",
    "99 tokens 5 turns until 3",
    "",
  )
  def test_other_lines_are_refused(self, line):
    with self.assertRaisesRegex(ConfigError, "is no stage; write"):
      curriculum(line)

  def test_stages_out_of_order_are_refused(self):
    for lines in (
      ("5 turns until 8", "6 turns until 5"),
      ("5 turns until 8", "6 turns until 8"),
    ):
      with self.assertRaisesRegex(ConfigError, "must grow"):
        curriculum(*lines)

  def test_more_than_evaluations_have_is_refused(self):
    for line in ("11 turns until 5", "321 tokens until 5"):
      with self.assertRaisesRegex(ConfigError, "what evaluations have"):
        curriculum(line).require_below(LAST)

  def test_an_unknown_rule_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "score, leave_out"):
      curriculum(cut="zero")


def an_end(attempt, *, turns=3, status=Status.TASK_LIMIT_REACHED):
  made = stage.a_trajectory(attempt=attempt, status=status)
  return dataclasses.replace(made, turns=made.turns * turns)


def a_group(*members):
  return dataclasses.replace(stage.a_group(), trajectories=members)


class CutTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.short = dataclasses.replace(LAST, max_turns=3)

  def left(self, *members, cut="leave_out", limits=None):
    trained = curriculum("3 turns until 5", cut=cut).trained(
      a_group(*members), limits or self.short, LAST
    )
    return [t.attempt for t in trained.trajectories]

  def test_the_cut_ones_are_left_out(self):
    done = Status.COMPLETED
    members = an_end(0), an_end(1, status=done), an_end(2, status=done)
    self.assertEqual(self.left(*members), [1, 2])
    self.assertEqual(self.left(*members, cut="score"), [0, 1, 2])
    self.assertEqual(self.left(*members, limits=LAST), [0, 1, 2])

  def test_a_group_with_nothing_to_compare_stays(self):
    self.assertEqual(self.left(an_end(0), an_end(1)), [0, 1])
    one = an_end(1, status=Status.COMPLETED)
    self.assertEqual(self.left(an_end(0), one), [0, 1])

  def test_an_environments_own_limit_is_no_cut(self):
    # It ended after two turns, where the stage allows three.
    self.assertFalse(is_cut(an_end(0, turns=2), self.short, LAST))
    full = an_end(0, status=Status.AGENT_CONTEXT_LIMIT)
    self.assertFalse(is_cut(full, self.short, LAST))
    fewer = dataclasses.replace(LAST, max_tokens=100)
    self.assertTrue(is_cut(full, fewer, LAST))
    self.assertFalse(is_cut(an_end(0, turns=10), fewer, LAST))

  @given(
    st.lists(st.sampled_from(["cut", "done", "failed"]), min_size=2, max_size=8)
  )
  def test_two_are_left_and_none_is_made_up(self, ends):
    status = {
      "cut": Status.TASK_LIMIT_REACHED,
      "done": Status.COMPLETED,
      "failed": Status.AGENT_INVALID_ACTION,
    }
    members = [an_end(n, status=status[end]) for n, end in enumerate(ends)]
    left = self.left(*members)
    self.assertGreaterEqual(len(left), 2)
    whole = [n for n, end in enumerate(ends) if end != "cut"]
    self.assertEqual(left, whole if len(whole) >= 2 else [*range(len(ends))])


if __name__ == "__main__":
  absltest.main()
