"""The registry lists workers, and picks the next one."""

import unittest

from agentrl_jax.errors import ConfigError
from agentrl_jax.service.controller.registry import (
  Health,
  Refused,
  Registry,
  TaskEntry,
  Timers,
)


def heartbeat(name="sums", address="a", concurrency=4, indices=(0, 1)):
  return {
    "name": name,
    "address": address,
    "concurrency": concurrency,
    "indices": list(indices),
  }


class RegistryTest(unittest.TestCase):
  def setUp(self):
    self.registry = Registry(Timers(coma_s=11, remove_s=300), str)

  def hear(self, now=0.0, **fields):
    return self.registry.add_heartbeat(heartbeat(**fields), now)

  def alive(self, now=0.0, **fields):
    self.hear(now, **fields)
    (worker,) = self.registry.find(fields.get("address", "a"))
    worker.health = Health.ALIVE
    return worker

  def test_a_worker_is_news_until_it_is_alive(self):
    self.assertTrue(self.hear())
    self.assertTrue(self.hear())
    self.assertIsNone(self.registry.pick("sums", 0.0))
    worker = self.alive()
    self.assertFalse(self.hear())
    self.assertIs(self.registry.pick("sums", 0.0), worker)

  def test_the_worker_with_the_most_room_is_picked(self):
    first, second = self.alive(address="a"), self.alive(address="b")
    first.num_sessions = 1
    self.assertIs(self.registry.pick("sums", 0.0), second)
    second.num_sessions = 2
    self.assertIs(self.registry.pick("sums", 0.0), first)
    second.capacity = 16
    self.assertIs(self.registry.pick("sums", 0.0), second)

  def test_full_and_stale_workers_are_not_picked(self):
    worker = self.alive()
    self.assertIsNone(self.registry.pick("sums", 11.5))
    self.assertIsNone(self.registry.pick("others", 0.0))
    worker.num_sessions = 4
    self.assertIsNone(self.registry.pick("sums", 0.0))
    worker.num_sessions, worker.full_until = 0, 5.0
    self.assertIsNone(self.registry.pick("sums", 4.0))
    self.assertIs(self.registry.pick("sums", 5.0), worker)
    self.registry.mark_stale("sums", worker.id, stale=True)
    self.assertIsNone(self.registry.pick("sums", 5.0))
    self.registry.mark_stale("sums", worker.id, stale=False)
    self.assertIs(self.registry.pick("sums", 5.0), worker)

  def test_the_silent_fall_into_coma_and_are_forgotten(self):
    worker = self.alive(now=0.0)
    self.alive(now=100.0, address="b")
    self.assertEqual(self.registry.tick(11.0), [])
    self.assertIs(worker.health, Health.ALIVE)
    self.registry.tick(11.5)
    self.assertIs(worker.health, Health.COMA)
    self.assertEqual(self.registry.tick(300.0), [])
    self.assertEqual(self.registry.tick(300.5), [worker])
    self.assertIs(worker.health, Health.DEAD)
    self.assertIn("sums", self.registry.tasks)
    self.registry.tick(500.0)
    self.assertEqual(self.registry.tasks, {})

  def test_a_heartbeat_renews(self):
    worker = self.alive()
    self.hear(now=10.0, concurrency=9)
    self.registry.tick(20.0)
    self.assertIs(worker.health, Health.ALIVE)
    self.assertEqual(worker.capacity, 9)

  def test_what_no_worker_would_say_is_refused(self):
    self.hear()
    for fields, words in (
      ({"indices": [0]}, "different indices"),
      ({"indices": []}, "cannot be empty"),
      ({"name": ""}, "cannot be empty"),
      ({"name": None}, "needs a task's name"),
      ({"indices": [0, None]}, "a number or a text, not None"),
      ({"address": ""}, "address"),
      ({"concurrency": 0}, "positive"),
      ({"concurrency": "4"}, "positive"),
      *(({"concurrency": x}, "") for x in (True, 10**400, 1 << 40, -1, 0.5)),
      ({"concurrency": float("nan")}, ""),
      *(({"indices": x}, "") for x in ("all", {"0": 1}, [0.5], [True], [[0]])),
      *(({"name": x}, "") for x in (["mine"], "x" * 5000, "two\nlines")),
      *(({"address": x}, "") for x in (7, "http://127.0.0.1:9/\napi")),
    ):
      with self.subTest(fields=fields), self.assertRaisesRegex(Refused, words):
        self.hear(**fields)
    with self.assertRaisesRegex(Refused, "sums#7 does not exist"):
      self.registry.mark_stale("sums", 7, stale=True)
    with self.assertRaisesRegex(Refused, "nothing does not exist"):
      self.registry.task("nothing")

  def test_a_task_whose_workers_are_gone_may_change(self):
    self.hear()
    self.registry.tick(1000.0)
    self.hear(now=1000.0, indices=[5])
    self.assertEqual(self.registry.task("sums").indices, [5])

  def test_indices_are_kept_apart_by_type(self):
    for indices, given, meant in (
      ([0, 5], 5, 5),
      (["x", "y"], "y", "y"),
      (["x", "y"], 1, "y"),
      (["x", -1], -1, -1),
      ([-1], -1, -1),
      (["x", "7"], 7, None),
      ([0, "x"], 1, None),
      ([0, "x"], "0", None),
      ([0, 5], 1, None),
      (["x"], 1, None),
      (["x"], -1, None),
    ):
      with self.subTest(indices=indices, given=given):
        entry = TaskEntry("sums", indices)
        if meant is None:
          with self.assertRaisesRegex(Refused, "does not support index"):
            entry.resolve(given)
        else:
          self.assertEqual(entry.resolve(given), meant)

  def test_timers_are_checked(self):
    with self.assertRaisesRegex(ConfigError, "sync_s=0"):
      Timers(sync_s=0)
