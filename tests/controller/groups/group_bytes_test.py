"""Groups arrive in the other processes as they were."""

import dataclasses

import numpy as np
from absl.testing import absltest

from agentrl_jax.controller.groups.group_bytes import (
  decode_groups,
  encode_groups,
)
from agentrl_jax.data.record_file import group_to_json
from agentrl_jax.data.records import Group
from tests.data.records import make_branching_group, make_group, with_experts


def _as_sent(group: Group) -> Group:
  """The group as the other processes are to have it."""
  return dataclasses.replace(
    group,
    trajectories=tuple(
      dataclasses.replace(
        t,
        transcript=(),
        turns=tuple(
          dataclasses.replace(
            turn, raw_logprob=np.full_like(turn.raw_logprob, np.nan)
          )
          for turn in t.turns
        ),
      )
      for t in group.trajectories
    ),
  )


class GroupBytesTest(absltest.TestCase):
  def _assert_same(self, groups):
    found = decode_groups(encode_groups(groups))
    self.assertEqual(
      [group_to_json(group) for group in found],
      [group_to_json(_as_sent(group)) for group in groups],
    )

  def test_groups_of_all_kinds(self):
    rng = np.random.default_rng(0)
    branching = make_branching_group(rng, id="2", task="b")
    self._assert_same([make_group(rng, id="1", task="a"), branching])
    self._assert_same([branching])

  def test_no_group_at_all(self):
    self._assert_same([])

  def test_a_group_without_turns(self):
    group = make_group(np.random.default_rng(0), id="1", task="a")
    first = dataclasses.replace(group.trajectories[0], turns=())
    alone = dataclasses.replace(group, trajectories=(first,))
    self._assert_same([alone])
    self._assert_same([alone, group])

  def test_turns_with_experts(self):
    group = make_group(np.random.default_rng(0), id="1", task="a")
    self._assert_same([with_experts(group), group])

  def test_a_turn_without_tokens(self):
    group = make_group(np.random.default_rng(0), id="1", task="a")
    first = group.trajectories[0]
    empty = dataclasses.replace(
      first.turns[0],
      observation=np.empty(0, np.int32),
      **dict.fromkeys(
        ("sampled", "behavior_logprob", "raw_logprob", "version"),
        np.empty(0, np.int32),
      ),
    )
    turns = (empty, *first.turns, empty)
    member = dataclasses.replace(first, turns=turns)
    self._assert_same([dataclasses.replace(group, trajectories=(member,))])

  def test_tokens_take_four_bytes_for_each_of_their_numbers(self):
    rng = np.random.default_rng(0)
    group = make_group(rng, id="1", task="a")
    first = group.trajectories[0]

    def size(times):
      turn = dataclasses.replace(
        first.turns[0],
        observation=np.zeros(1000 * times, np.int32),
        sampled=np.zeros(100 * times, np.int32),
        behavior_logprob=np.zeros(100 * times, np.float32),
        raw_logprob=np.zeros(100 * times, np.float32),
        version=np.zeros(100 * times, np.int32),
      )
      member = dataclasses.replace(first, turns=(turn,))
      alone = dataclasses.replace(group, trajectories=(member,))
      return len(encode_groups([alone]))

    self.assertAlmostEqual(size(1001) - size(1), 4 * 1_300_000, delta=10)
