"""The table knows the sessions of each worker, without a search."""

import unittest

from agentrl_jax.service.controller.registry import Worker
from agentrl_jax.service.controller.session_table import SessionTable


def a_worker(id: int) -> Worker:
  return Worker(id, "sums", f"a{id}", None, capacity=4, last_visit=0.0)


class SessionTableTest(unittest.IsolatedAsyncioTestCase):
  async def test_sessions_are_found_by_their_worker(self):
    table, first, second = SessionTable(), a_worker(1), a_worker(2)
    sessions = [table.open(worker, 0) for worker in (first, second, first)]
    self.assertEqual(table.of(first), [sessions[0], sessions[2]])
    self.assertTrue(table.end(sessions[0]))
    self.assertFalse(table.end(sessions[0]))
    self.assertEqual(table.of(first), [sessions[2]])
    self.assertEqual(table.of(second), [sessions[1]])
    self.assertEqual((first.num_sessions, second.num_sessions), (1, 1))

  async def test_workers_without_sessions_are_forgotten(self):
    table = SessionTable()
    for n in range(100):
      table.end(table.open(a_worker(n), 0))
    self.assertEqual(table._of, {})
