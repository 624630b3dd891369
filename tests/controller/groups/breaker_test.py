"""A task whose environment dies or hangs costs the others nothing."""

import asyncio
import collections
import functools
import unittest

from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import DropReason, Monitor
from agentrl_jax.data.records import Task
from tests.controller.groups.simulation import HOUR, Settings, train

TASKS = ("a", "b", "c", "d", "e")
DAY = 24 * HOUR


@functools.cache
def rates(*, steps=200, resume_at=(), **changes):
  """Groups per second, of task b and of the others; and what was found."""
  made = Settings(
    tasks=TASKS, max_staleness=3, max_age=8, train_s=0.1, **changes
  )
  found = train(made, steps=steps, resume_at=resume_at)
  taken = collections.Counter(group.task.name for group in found.groups)
  others = taken.total() - taken["b"]
  return taken["b"] / found.end_s, others / found.end_s, found


class SharedPipelineTest(unittest.TestCase):
  def test_others_lose_less_than_a_tenth(self):
    _, healthy, _ = rates()
    for fails, began in ((True, 30.0), (False, 0.0)):
      with self.subTest(fails=fails, began=began):
        of_b, others, found = rates(
          broken="b", fails=fails, broken_s=(began, DAY)
        )
        self.assertGreater(others, 0.9 * healthy)
        self.assertLess(of_b, 0.5)
        counts = found.monitor.tasks["b"]
        self.assertTrue(counts.is_open)
        self.assertGreater(counts.dropped[DropReason.BREAKER_OPEN], 0)
        self.assertLess(counts.started, 200)  # of 600 that were its share

  def test_hangs_that_leave_the_others_no_place_are_ended(self):
    """Of 8 groups that may be ahead, those that hang become too many."""
    for began in (20, 25):
      made = Settings(
        tasks=("a", "b"), broken="b", broken_s=(began, DAY), max_age=8
      )
      found = train(made, steps=100)
      self.assertLess(found.end_s, HOUR / 4)
      self.assertTrue(found.monitor.tasks["b"].is_open)

  def test_a_task_that_is_back_has_its_share_again(self):
    healthy, _, _ = rates()
    of_b, _, found = rates(
      steps=400, broken="b", fails=False, broken_s=(30.0, 60.0)
    )
    self.assertGreater(of_b, 0.7 * healthy)
    self.assertFalse(found.monitor.tasks["b"].is_open)

  def test_nothing_is_lost_over_resumes(self):
    _, _, found = rates(
      broken="b",
      fails=True,
      broken_s=(10.0, 40.0),
      resume_at=frozenset({40, 41, 90}),
    )
    ids = [group.id for group in found.groups]
    self.assertEqual(len(set(ids)), len(ids))

  def test_an_outage_of_everything_opens_no_breaker(self):
    for second in (10, 35):
      _, _, found = rates(steps=100, outage_at=second + 0.5)
      for name in TASKS:
        self.assertFalse(found.monitor.tasks[name].is_open)
        self.assertEqual(
          found.monitor.tasks[name].dropped[DropReason.BREAKER_OPEN], 0
        )

  def test_one_task_alone_goes_on_after_its_environment_is_back(self):
    made = Settings(broken="a", fails=True, broken_s=(5.0, 300.0))
    found = train(made, steps=40)
    self.assertLess(found.end_s, 300 + 60 + 100)
    self.assertLess(found.monitor.tasks["a"].faults.total(), 100)


class BreakersTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.monitor = Monitor()
    self.breakers = Breakers(
      lambda: {"a": 0.75, "b": 0.25}, GroupTimers(), self.monitor, num_places=8
    )

  async def test_before_its_first_group_a_task_has_its_share(self):
    for n in range(6):
      self.assertTrue(self.breakers.may_start("a"))
      self.breakers.started("a", f"a{n}")
    self.assertFalse(self.breakers.may_start("a"))
    self.assertIsNone(self.breakers.refusal())  # b may
    for n in range(2):
      self.breakers.started("b", f"b{n}")
    self.assertIn("has its share of places", self.breakers.refusal())
    self.breakers.finished("a", "a3")
    self.assertTrue(self.breakers.may_start("a"))
    self.assertFalse(self.breakers.may_start("b"))

  async def test_three_groups_lost_in_a_row_open_it_and_one_is_a_trial(self):
    for n in range(5):
      self.breakers.started("b", f"b{n}")
    for n in (0, 1):
      self.breakers.lost("b", f"b{n}")
    self.breakers.finished("b", "b2")
    with self.assertLogs(level="WARNING") as logs:
      for n in range(3):
        self.breakers.started("b", f"c{n}")
        self.breakers.lost("b", f"c{n}")
    self.assertIn("its last 3 groups were lost", logs.output[0])
    self.assertFalse(self.breakers.may_start("b"))
    self.assertTrue(self.breakers.may_start("a"))
    self.assertEqual(self.monitor.snapshot()["groups/breaker_open/b"], 1.0)
    loop = asyncio.get_running_loop()
    self.assertAlmostEqual(
      self.breakers.next_trial_at() - loop.time(), 1.0, delta=0.5
    )

  async def test_groups_that_are_dropped_are_counted_by_reason(self):
    task = Task("b", "train", 0)
    self.breakers.dropped(task)
    for n in range(3):
      self.breakers.started("b", f"b{n}")
      self.breakers.lost("b", f"b{n}")
    for _ in range(2):
      self.breakers.dropped(task)
    metrics = self.monitor.snapshot()
    self.assertEqual(metrics["groups/dropped/no_place/b"], 1.0)
    self.assertEqual(metrics["groups/dropped/breaker_open/b"], 2.0)

  async def test_a_group_from_before_that_finishes_closes_it(self):
    self.breakers.started("b", "slow")
    for n in range(3):
      self.breakers.started("b", f"b{n}")
      self.breakers.lost("b", f"b{n}")
    self.assertFalse(self.breakers.may_start("b"))
    self.breakers.finished("b", "slow")
    self.assertTrue(self.breakers.may_start("b"))
    self.assertEqual(self.monitor.snapshot()["groups/breaker_open/b"], 0.0)
