"""Kept groups are even over tasks and outcomes, whoever ends first."""

import collections

from absl.testing import absltest

from agentrl_jax.data.records import Group, Status, Task, Trajectory
from launch.run.groups.kept_groups import KeptGroups


def group(id, name, wins, size=4):
  task = Task(name, "train", int(id))
  trajectories = tuple(
    Trajectory(
      task=task,
      group_id=id,
      attempt=n,
      seed=n,
      turns=(),
      status=Status.COMPLETED,
      reward=float(n < wins),
    )
    for n in range(size)
  )
  return Group(id, task, trajectories)


def batch(first):
  """Twenty quick groups that fail, then two of a slow task, one that wins."""
  quick = [group(f"{first + n}", "quick", 0) for n in range(20)]
  slow = [group(f"{first + 20 + n}", "slow", 2 * n) for n in range(2)]
  return [*quick, *slow, group(f"{first + 22}", "quick", 4)]


class KeptGroupsTest(absltest.TestCase):
  def test_rare_ones_are_kept_as_often_as_common_ones(self):
    kept = KeptGroups(2, seed=0)
    counts = collections.Counter()
    for version in range(20):
      for each in kept.choose(batch(100 * version), version):
        wins = sum(t.is_success for t in each.trajectories)
        counts[each.task.name, wins] += 1
    self.assertEqual(set(counts.values()), {10})
    self.assertLen(counts, 4)

  def test_the_order_is_the_batchs_and_the_choice_is_repeated(self):
    groups = batch(0)
    first, again = (KeptGroups(9, seed=3).choose(groups, 5) for _ in range(2))
    self.assertEqual([g.id for g in first], [g.id for g in again])
    order = [int(g.id) for g in first]
    self.assertEqual(order, sorted(order))
    self.assertLen(set(order), 9)

  def test_it_is_not_the_first_that_ended(self):
    quick = [group(f"{n}", "quick", 0) for n in range(20)]
    seen = {
      KeptGroups(1, seed=0).choose(quick, version)[0].id
      for version in range(40)
    }
    self.assertGreater(len(seen), 10)

  def test_none_and_all(self):
    groups = batch(0)
    self.assertEqual(KeptGroups(0, seed=0).choose(groups, 0), [])
    self.assertEqual(KeptGroups(99, seed=0).choose(groups, 0), groups)
    lost = Group("7", Task("quick", "train", 7), ())
    self.assertEqual(KeptGroups(1, seed=0).choose([lost], 0), [lost])
