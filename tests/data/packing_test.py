"""Every token of every trajectory is in the rows once, unchanged."""

import dataclasses

import numpy as np
import pytest
from absl.testing import absltest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.data.packing import assign_rows, pack
from agentrl_jax.errors import ConfigError
from tests.data.records import make_group, make_several_lines, make_trajectory

pytestmark = pytest.mark.smoke


class AssignRowsTest(absltest.TestCase):
  @settings(max_examples=100, deadline=None)
  @given(st.lists(st.integers(1, 32), max_size=40))
  def test_every_sequence_once_and_no_row_too_full(self, lengths):
    rows = assign_rows(lengths, 32)
    self.assertCountEqual([n for row in rows for n in row], range(len(lengths)))
    for row in rows:
      self.assertLessEqual(sum(lengths[n] for n in row), 32)

  def test_fills_well(self):
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 260, 300).tolist()
    rows = assign_rows(lengths, 512)
    self.assertGreater(sum(lengths) / (len(rows) * 512), 0.95)

  def test_too_long(self):
    with self.assertRaisesRegex(ConfigError, "33 tokens.*row_length=32"):
      assign_rows([3, 33], 32)


class PackTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(1)
    self.trajectories = [make_trajectory(rng) for _ in range(17)]
    self.rows = pack(self.trajectories, row_length=64, rows_multiple=4)

  def test_each_trajectory_is_whole(self):
    rows = self.rows
    for n, trajectory in enumerate(self.trajectories):
      here = (rows.trajectory == n) & (rows.segment > 0)
      self.assertLen(set(np.nonzero(here)[0]), 1, "one row")
      expected = np.concatenate(
        [x for t in trajectory.turns for x in (t.observation, t.sampled)]
      )
      np.testing.assert_array_equal(rows.token[here], expected)
      np.testing.assert_array_equal(
        rows.position[here], np.arange(len(expected))
      )
      trained = here & rows.mask
      for name in ("sampled", "behavior_logprob"):
        field = {"sampled": "token"}.get(name, name)
        np.testing.assert_array_equal(
          getattr(rows, field)[trained],
          np.concatenate([getattr(t, name) for t in trajectory.turns]),
        )

  def test_each_token_knows_its_turn_and_policy_slot(self):
    turns = self.trajectories[0].turns
    moved = dataclasses.replace(
      self.trajectories[0],
      turns=(turns[0], dataclasses.replace(turns[1], policy_slot=2)),
    )
    rows = pack([moved], row_length=64)
    lengths = [len(t.observation) + len(t.sampled) for t in turns]
    here = rows.segment == 1
    np.testing.assert_array_equal(rows.turn[here], np.repeat([0, 1], lengths))
    np.testing.assert_array_equal(
      rows.policy_slot, np.where(rows.mask & (rows.turn == 1), 2, 0)
    )

  def test_tokens_of_each_line_know_the_turn_of_the_episode(self):
    rng = np.random.default_rng(2)
    group = make_several_lines(make_group(rng, turns=5))
    for sharing in (1, 4):
      rows = pack(group.trajectories, row_length=64, sharing=sharing)
      for n, trajectory in enumerate(group.trajectories):
        for number, turn in enumerate(trajectory.turns):
          here = (rows.trajectory == n) & (rows.turn == number)
          here &= rows.mask
          np.testing.assert_array_equal(rows.token[here], turn.sampled)

  def test_the_rest_is_padding(self):
    padding = self.rows.segment == 0
    self.assertEqual(
      padding.sum(),
      self.rows.token.size - sum(t.num_tokens for t in self.trajectories),
    )
    self.assertFalse(self.rows.mask[padding].any())
    self.assertEqual(len(self.rows.token) % 4, 0)

  def test_nothing_to_pack(self):
    rows = pack([], row_length=8, rows_multiple=2)
    self.assertEqual(rows.token.shape, (2, 8))
    self.assertEqual(rows.fill, 0)
