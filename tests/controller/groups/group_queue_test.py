"""Tests of the queue of groups: bounded, all or none, nothing lost."""

import asyncio
import itertools
import random
import unittest

from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.group_queue import (
  GroupQueue,
  QueueLimits,
  select_groups,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.errors import ConfigError, DeadlineExceeded, QueueClosed
from tests.clocks import turns_of_the_loop
from tests.controller.stage import a_group, started


def a_queue(max_groups=2, **limits):
  return GroupQueue(QueueLimits(max_groups=max_groups, **limits), Monitor())


async def put(queue, group):
  """Offers a group, and waits for room, as a producer does."""
  if group.id not in queue._started:
    queue.begin(group.id)
  queue.offer(group)
  await queue.room(group.id)


def ids(groups):
  return [int(group.id) for group in groups]


class GroupQueueTest(unittest.IsolatedAsyncioTestCase):
  async def test_first_in_first_out(self):
    queue = a_queue(3)
    for n in (2, 0, 1):
      await put(queue, a_group(n))
    self.assertEqual(ids(await queue.take(2, version=0)), [2, 0])
    self.assertEqual(ids(await queue.take(1, version=0)), [1])

  async def test_take_waits_for_all_it_asks(self):
    queue = a_queue()
    await put(queue, a_group(0))
    taking = await started(queue.take(2, version=0))
    self.assertFalse(taking.done())
    await put(queue, a_group(1))
    self.assertEqual(ids(await taking), [0, 1])

  async def test_full_queue_holds_producers_back_in_turn(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = [asyncio.create_task(put(queue, a_group(n))) for n in (1, 2)]
    await turns_of_the_loop()
    self.assertEqual([w.done() for w in waiting], [False, False])
    await queue.take(1, version=0)
    await turns_of_the_loop()
    self.assertEqual([w.done() for w in waiting], [True, False])
    await queue.take(1, version=0)
    await asyncio.gather(*waiting)

  async def test_finished_groups_beyond_the_limit_are_in_the_snapshot(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = await started(put(queue, a_group(1)))
    self.assertEqual(ids(queue.snapshot()), [0, 1])
    waiting.cancel()
    await turns_of_the_loop()
    self.assertEqual(ids(queue.snapshot()), [0, 1])

  async def test_producer_waits_no_longer_than_allowed(self):
    queue = GroupQueue(
      QueueLimits(max_groups=1), Monitor(), watch=LearnerWatch(1e-9)
    )
    for n in (0, 1):
      queue.begin(f"{n:08d}")
      queue.offer(a_group(n))
    with self.assertRaisesRegex(DeadlineExceeded, "the learner to take"):
      await queue.room("00000001")

  async def test_close_lets_drain_then_raises(self):
    queue = a_queue()
    await put(queue, a_group(0))
    taking = await started(queue.take(2, version=0))
    queue.close()
    with self.assertRaisesRegex(QueueClosed, "1 groups in it"):
      await taking
    self.assertEqual(ids(await queue.take(1, version=0)), [0])

  async def test_close_frees_producers(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = await started(put(queue, a_group(1)))
    queue.close()
    await waiting

  async def test_asking_for_more_than_fits_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "queue.max_groups"):
      await a_queue(2).take(3, version=0)


class MaxAgeTest(unittest.IsolatedAsyncioTestCase):
  async def test_due_group_that_is_given_up_is_not_waited_for(self):
    queue = a_queue(4, max_age=1)
    queue.begin("00000000", 0)
    queue.begin("00000001", 1)
    queue.offer(a_group(1))
    taking = await started(queue.take(1, version=1))
    self.assertFalse(taking.done())
    queue.give_up("00000000")
    self.assertEqual(ids(await taking), [1])


class OrderOfStartingTest(unittest.IsolatedAsyncioTestCase):
  async def test_slow_group_is_waited_for_even_by_a_full_queue(self):
    queue = a_queue(2, order="started")
    for n in range(4):
      queue.begin(f"{n:08d}")
    waiting = [asyncio.create_task(put(queue, a_group(n))) for n in (1, 2, 3)]
    taking = await started(queue.take(2, version=0))
    self.assertFalse(taking.done())
    await put(queue, a_group(0))
    self.assertEqual(ids(await taking), [0, 1])
    self.assertEqual(ids(await queue.take(2, version=0)), [2, 3])
    await asyncio.gather(*waiting)

  async def test_taking_from_beyond_the_limit_frees_that_producer_alone(self):
    queue = a_queue(1, order="started")
    for n in range(3):
      queue.begin(f"{n:08d}")
    waiting = {
      n: asyncio.create_task(put(queue, a_group(n))) for n in (1, 2, 0)
    }
    await turns_of_the_loop()
    self.assertEqual(ids(await queue.take(1, version=0)), [0])
    await turns_of_the_loop()
    freed = [n for n, task in waiting.items() if task.done()]
    self.assertEqual(freed, [1, 0])
    queue.close()
    await asyncio.gather(*waiting.values())


def choose(finished, born, *, version=2, max_age=2, **options):
  chosen = select_groups(
    list(finished),
    born,
    num_groups=2,
    version=version,
    max_age=max_age,
    **options,
  )
  return chosen and "".join(chosen)


NEW = {"c": 2, "d": 2}


class SelectGroupsTest(parameterized.TestCase):
  @settings(max_examples=200, deadline=None)
  @given(
    born=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 6)),
    dice=st.randoms(use_true_random=False),
    stride=st.integers(1, 3),
  )
  def test_a_maximum_age_above_all_delays_no_batch(self, born, dice, stride):
    """A billion versions were a loop of a billion turns."""
    finished = [group for group in born if dice.random() < 0.7]
    far, farther = (
      choose(finished, born, version=6, max_age=age, versions_per_step=stride)
      for age in (40, 10**9)
    )
    self.assertEqual(far, farther)

  @parameterized.named_parameters(
    ("first_come_first_taken_while_none_is_due", "dcb", NEW | {"b": 2}, "dc"),
    ("a_due_group_is_waited_for", "cd", NEW | {"a": 0}, None),
    ("a_due_group_is_taken", "cda", NEW | {"a": 0}, "ca"),
    ("a_group_not_yet_due_is_overtaken", "cd", NEW | {"a": 1}, "cd"),
    ("more_due_than_fit", "abc", {"a": 0, "b": 0, "c": 0}, "ab"),
    # Three due at the next version, two to a step: one must go now.
    ("looks_ahead_and_waits", "de", dict(a=1, b=1, c=1, d=2, e=2), None),
    ("looks_ahead_and_takes", "dea", dict(a=1, b=1, c=1, d=2, e=2), "da"),
  )
  def test_selects(self, finished, born, expected):
    self.assertEqual(choose(finished, born), expected)

  def test_the_next_step_is_several_versions_on(self):
    """Age 3 at version 4 is age 5 at the next step, of version 6."""
    born, options = {"a": 2, "b": 4, "c": 4}, {"version": 4, "max_age": 3}
    self.assertEqual(choose("bc", born, **options), "bc")
    self.assertIsNone(choose("bc", born, **options, versions_per_step=2))

  def test_something_is_taken_where_all_have_come(self):
    for ages in itertools.product(range(3), repeat=4):
      born = dict(zip("abcd", ages, strict=True))
      self.assertIsNotNone(choose("dcba", born))

  @settings(deadline=None, max_examples=80)
  @given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(0, 2**32),
  )
  def test_no_group_passes_the_age_whatever_the_timing(
    self, max_staleness, leeway, per_step, concurrent, stride, seed
  ):
    """Groups end at random, the slow ones last; some are lost."""
    max_age = max_staleness + leeway
    admission = Admission(
      AdmissionLimits(
        max_staleness=max_staleness,
        groups_per_step=per_step,
        max_concurrent_groups=concurrent,
        versions_per_step=stride,
        refills_per_step=2,
      )
    )
    dice = random.Random(seed)
    born, finished, oldest = {}, [], 0
    for n in range(300):
      if admission.refusal() is None:
        admission.start()
        born[f"{n}"] = admission.version
      running = [g for g in born if g not in finished]
      if running and dice.random() < 0.7:
        group = running[-1] if dice.random() < 0.8 else running[0]
        kept = dice.random() < 0.8
        if kept:
          admission.end()
          finished.append(group)
        else:
          if dice.random() < 0.5 or not admission.refill():
            admission.lose()
          del born[group]
      chosen = select_groups(
        finished,
        born,
        num_groups=per_step,
        version=admission.version,
        max_age=max_age,
        versions_per_step=stride,
      )
      if chosen is not None:
        oldest = max(oldest, *(admission.version - born[g] for g in chosen))
        finished = [g for g in finished if g not in chosen]
        born = {g: v for g, v in born.items() if g not in chosen}
        admission.advance(admission.version + stride)
    self.assertGreater(admission.version, 0)
    self.assertLessEqual(oldest, max_age)
    overdue = [g for g, v in born.items() if admission.version - v > max_age]
    self.assertEqual(overdue, [])
