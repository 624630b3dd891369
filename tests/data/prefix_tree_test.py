"""Trees hold every token that trajectories share once, and lose none."""

import dataclasses

import numpy as np
import pytest
from absl.testing import absltest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.data.packing import SortedPrefixes, keys_of, pack
from agentrl_jax.data.records import Line
from agentrl_jax.errors import ConfigError
from tests.data.records import (
  make_branching_group,
  make_trajectory,
  with_answer,
)

pytestmark = pytest.mark.smoke
ROW, SHARING = 64, 6


def tokens_of(trajectory):
  return np.concatenate(
    [x for t in trajectory.turns for x in (t.observation, t.sampled)]
  )


def line_of(turn):
  return Line("", (0,), (turn,))


def num_prefixes(sequences):
  """Counts the nodes of the prefix tree: distinct beginnings."""
  return len(
    {tuple(x[: n + 1]) for x in map(list, sequences) for n in range(len(x))}
  )


def trajectories_of(seed=0, num_groups=5):
  rng = np.random.default_rng(seed)
  system = rng.integers(1, 50, 4)
  groups = [
    make_branching_group(rng, id=str(n), prompt=system)
    for n in range(num_groups)
  ]
  return [t for group in groups for t in group.trajectories]


class SortedPrefixesTest(absltest.TestCase):
  @settings(max_examples=100, deadline=None)
  @given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=9))
  def test_counts_nodes(self, sequences):
    prefixes = SortedPrefixes([np.array(x, np.uint64) for x in sequences])
    self.assertEqual(prefixes.num_nodes, num_prefixes(sequences))

  def test_shared_with_the_one_before(self):
    sequences = [[1, 2, 3], [7], [1, 2, 5], [1], [1, 2, 3]]
    prefixes = SortedPrefixes([np.array(x, np.uint64) for x in sequences])
    self.assertEqual(list(prefixes.walk([2, 1, 0])), [(0, 0), (2, 2), (1, 0)])
    self.assertEqual(
      list(prefixes.walk(range(5))), [(3, 0), (0, 1), (4, 3), (2, 2), (1, 0)]
    )


class PackTreesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.trajectories = trajectories_of()
    self.rows = pack(
      self.trajectories, row_length=ROW, rows_multiple=4, sharing=SHARING
    )

  def test_each_trajectory_is_whole(self):
    rows, tree = self.rows, self.rows.tree
    for n, trajectory in enumerate(self.trajectories):
      here = (rows.trajectory == n) & (rows.segment > 0)
      (row,) = set(np.nonzero(here)[0])
      token = tokens_of(trajectory)
      np.testing.assert_array_equal(rows.token[here], token)
      path = tree.place[here]
      np.testing.assert_array_equal(tree.token[row, path], token)
      np.testing.assert_array_equal(tree.position[row, path], range(len(path)))
      np.testing.assert_array_equal(tree.parent[row, path[1:]], path[:-1])
      self.assertEqual(tree.parent[row, path[0]], 0)

  def test_a_token_sees_its_ancestors_alone(self):
    rows, tree = self.rows, self.rows.tree
    for row in range(len(tree.token)):
      seen = {}
      for n in set(rows.trajectory[row][rows.segment[row] > 0]):
        here = (rows.trajectory[row] == n) & (rows.segment[row] > 0)
        path = tree.place[row, here].tolist()
        for depth, t in enumerate(path):
          self.assertEqual(
            seen.setdefault(t, path[: depth + 1]), path[: depth + 1]
          )
      for t, ancestors in seen.items():
        s = np.arange(ROW)
        visible = (s <= t) & (t < tree.end[row])
        self.assertEqual(np.flatnonzero(visible).tolist(), ancestors)
      self.assertCountEqual(seen, np.flatnonzero(tree.end[row]).tolist())

  def test_trained_nodes(self):
    rows, tree = self.rows, self.rows.tree
    wanted = np.zeros_like(tree.mask)
    row, at = np.nonzero(rows.mask)
    wanted[row, tree.place[row, at]] = True
    np.testing.assert_array_equal(tree.mask, wanted)

  def test_what_fits_is_computed_once(self):
    rows = pack(self.trajectories, row_length=1024, sharing=SHARING)
    wanted = num_prefixes(map(tokens_of, self.trajectories))
    self.assertEqual(rows.num_computed, wanted)
    self.assertLess(wanted, 0.7 * rows.num_tokens)

  def test_neither_limit_is_passed(self):
    rows = pack(self.trajectories, row_length=40, sharing=2)
    self.assertEqual(rows.tree.token.shape[1], 40)
    self.assertEqual(rows.token.shape[1], 80)
    for row in range(len(rows.token)):
      members = set(rows.trajectory[row][rows.segment[row] > 0])
      nodes = num_prefixes(tokens_of(self.trajectories[n]) for n in members)
      self.assertEqual(np.count_nonzero(rows.tree.end[row]), nodes)

  def test_without_anything_shared_it_fills_as_well(self):
    rng = np.random.default_rng(0)
    trajectories = [make_trajectory(rng, turns=3) for _ in range(100)]
    plain = pack(trajectories, row_length=128)
    rows = pack(trajectories, row_length=128, sharing=4)
    self.assertLessEqual(len(rows.token), len(plain.token))

  def test_a_cut_tree_keeps_branches_together(self):
    """Two prompts with long answers: no row holds answers to both."""
    rng = np.random.default_rng(0)
    trajectories = []
    for _ in range(2):
      group = make_branching_group(rng, prompt=rng.integers(1, 50, 60), size=9)
      trajectories += group.trajectories
    rows = pack(trajectories, row_length=100, sharing=9)
    for row in range(len(rows.token)):
      members = rows.trajectory[row][rows.segment[row] > 0]
      self.assertLen(set(members // 9), 1)

  def test_few_lengths(self):
    """Of the trajectories' rows, so that few programs are compiled."""
    answers = [
      dataclasses.replace(self.trajectories[0], attempt=n) for n in range(40)
    ]
    size = answers[0].num_tokens
    for number, multiple in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (9, 6)):
      rows = pack(answers[:number], row_length=size, sharing=6)
      self.assertEqual(rows.token.shape, (-(-number // 6), multiple * size))

  def test_too_long(self):
    with self.assertRaisesRegex(ConfigError, "tokens does not fit.*length=8"):
      pack(self.trajectories, row_length=8, sharing=2)

  def test_an_episode_without_turns(self):
    """It ended before its first answer, and must not end the run."""
    empty = dataclasses.replace(self.trajectories[0], turns=())
    for trajectories in ([empty], [empty, *self.trajectories[:3], empty]):
      rows = pack(trajectories, row_length=ROW, sharing=SHARING)
      plain = pack(trajectories, row_length=ROW)
      self.assertEqual(rows.num_tokens, plain.num_tokens)

  def test_nothing_to_pack(self):
    rows = pack([], row_length=8, rows_multiple=2, sharing=3)
    self.assertEqual(rows.token.shape, (2, 8))
    self.assertEqual(rows.tree.token.shape, (2, 8))
    self.assertEqual(rows.num_computed, 0)


class GrammarTest(absltest.TestCase):
  """Answers under other grammars have other log-probabilities."""

  def keys(self, *grammars):
    trajectory = make_trajectory(np.random.default_rng(0), turns=1)
    (turn,) = trajectory.turns
    return keys_of(
      [
        line_of(dataclasses.replace(turn, grammar=grammar))
        for grammar in grammars
      ]
    ), len(turn.observation)

  def test_the_same_grammar_is_shared(self):
    keys, _ = self.keys("a", "a")
    np.testing.assert_array_equal(*keys)

  def test_another_is_not(self):
    for grammars in (("a", "b"), ("a", "")):
      keys, observed = self.keys(*grammars)
      self.assertFalse((keys[0] == keys[1])[observed:].any())
      np.testing.assert_array_equal(keys[0][:observed], keys[1][:observed])

  def test_the_start_of_the_answer_counts(self):
    trajectory = make_trajectory(np.random.default_rng(0), turns=1)
    (turn,) = trajectory.turns
    turn = dataclasses.replace(turn, grammar="a")
    said = np.append(turn.observation[-1:], turn.sampled)
    earlier = with_answer(np.random.default_rng(0), turn, said)
    earlier = dataclasses.replace(earlier, observation=turn.observation[:-1])
    a, b = keys_of([line_of(turn), line_of(earlier)])
    observed = len(turn.observation)
    self.assertFalse((a == b)[observed - 1 :].any())
