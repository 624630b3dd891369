"""Parts of episodes, and the groups in which they are compared."""

import dataclasses

import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.train.compared import compared_parts
from tests.data.records import make_group, make_several_lines

pytestmark = pytest.mark.smoke


def groups_of(**fields):
  rng = np.random.default_rng(3)
  return [
    make_several_lines(make_group(rng, id=name, turns=5), **fields)
    for name in "gh"
  ]


def turns_of(compared):
  return [
    turn.sampled.tobytes()
    for group in compared.groups
    for part in group.trajectories
    for turn in part.turns
  ]


class ComparedTest(parameterized.TestCase):
  @parameterized.parameters("episodes", "roles", "lines")
  def test_every_turn_is_in_one_part(self, compare):
    groups = groups_of()
    compared = compared_parts(groups, compare=compare)
    whole = [t for group in groups for t in group.trajectories]
    wanted = [turn.sampled.tobytes() for t in whole for turn in t.turns]
    self.assertCountEqual(turns_of(compared), wanted)
    for trajectory in whole:
      parts = compared.parts[id(trajectory)]
      numbers = sorted(u for _, own in parts for u in own)
      self.assertEqual(numbers, list(range(len(trajectory.turns))))
      for part, own in parts:
        self.assertEqual(
          [turn.sampled.tobytes() for turn in part.turns],
          [trajectory.turns[u].sampled.tobytes() for u in own],
        )

  def test_whole_episodes_stay_the_same_objects(self):
    groups = groups_of()
    compared = compared_parts(groups)
    self.assertEqual([g.id for g in compared.groups], ["g", "h"])
    for group, other in zip(groups, compared.groups, strict=True):
      for trajectory, part in zip(
        group.trajectories, other.trajectories, strict=True
      ):
        self.assertIs(trajectory, part)

  def test_roles_are_groups_with_rewards_of_their_own(self):
    (group,) = groups_of()[:1]
    first, *rest = group.trajectories
    first = dataclasses.replace(first, role_rewards={"write": 7.0})
    group = dataclasses.replace(group, trajectories=(first, *rest))
    compared = compared_parts([group], compare="roles")
    found = {g.id: [t.reward for t in g.trajectories] for g in compared.groups}
    rewards = [t.reward for t in group.trajectories]
    self.assertEqual(found, {"g/plan": rewards, "g/write": [7.0, *rewards[1:]]})
    for each in compared.groups:
      roles = {line.role for t in each.trajectories for line in t.lines}
      self.assertLen(roles, 1)

  def test_an_episode_without_the_role_is_not_in_its_group(self):
    (group,) = groups_of()[:1]
    first, *rest = group.trajectories
    alone = dataclasses.replace(
      first, turns=tuple(t for t in first.turns if t.line == 0)
    )
    group = dataclasses.replace(group, trajectories=(alone, *rest))
    compared = compared_parts([group], compare="roles")
    sizes = {each.id: len(each.trajectories) for each in compared.groups}
    self.assertEqual(sizes, {"g/plan": 4, "g/write": 3})

  def test_lines_count_by_the_episode_s_reward(self):
    (group,) = groups_of(num_lines=3)[:1]
    compared = compared_parts([group], compare="lines")
    self.assertLen(compared.groups, 1)
    rewards = [t.reward for t in compared.groups[0].trajectories]
    wanted = [t.reward for t in group.trajectories for _ in range(3)]
    self.assertEqual(rewards, wanted)

  def test_roles_that_are_not_trained_on_are_left_out(self):
    groups = groups_of()
    for compare in ("episodes", "lines", "roles"):
      compared = compared_parts(groups, compare=compare, roles=("write",))
      wanted = [
        turn.sampled.tobytes()
        for group in groups
        for t in group.trajectories
        for line in t.lines
        if line.role == "write"
        for turn in line.turns
      ]
      self.assertCountEqual(turns_of(compared), wanted)

  def test_an_episode_without_a_trained_role_is_still_compared(self):
    (group,) = groups_of()[:1]
    compared = compared_parts([group], roles=("nobody",))
    self.assertEqual(
      [t.reward for t in compared.groups[0].trajectories],
      [t.reward for t in group.trajectories],
    )
    self.assertEqual(turns_of(compared), [])
