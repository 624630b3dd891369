"""Tests of `controller.collector`: random faults, and every count exact."""

import unittest

from tests.controller.pipeline import STEP, Pipeline, ids, played_by
from tests.controller.stage import Brittle, ScriptedEngine, a_player, until


class FaultsTest(unittest.IsolatedAsyncioTestCase):
  async def test_500_episodes_with_faults_lose_no_group_and_no_session(self):
    environment = Brittle(fault_rate=0.05, seed=3)
    engine = ScriptedEngine(skill=0.8)
    pipeline = Pipeline(played_by(a_player(environment, engine)))
    num_steps, seen = 63, []  # 63 * 2 groups * 4 attempts = 504 episodes
    async with pipeline.running() as collector:
      for version in range(num_steps):
        seen += await collector.take(STEP, version=version)
      collector.pause()
      await until(lambda: pipeline.admission.in_flight == 0)
      state = collector.snapshot()
    self.assertEqual(environment.num_open, 0)
    self.assertEqual(state.in_flight, ())
    counts = pipeline.monitor.tasks["arithmetic"]
    every = [*seen, *state.queued]
    self.assertEqual(sorted(ids(every)), list(range(len(every))))
    self.assertFalse(counts.dropped)
    self.assertGreater(environment.num_faults, 50)
    self.assertEqual(counts.faults.total(), environment.num_faults)
    self.assertEqual(counts.started, counts.finished + counts.faults.total())
    self.assertEqual(counts.masked, sum(g.num_masked for g in every))
    self.assertEqual(counts.finished, sum(len(g.trajectories) for g in every))
    self.assertEqual(counts.finished + counts.masked, 4 * len(every))
    self.assertEqual(counts.started, 4 * len(every) + counts.retried)


if __name__ == "__main__":
  unittest.main()
