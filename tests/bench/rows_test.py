"""Rows of benchmarks time the code that they name."""

import unittest

import jax
import numpy as np

from agentrl_jax.rollout.engine import programs
from bench.learner import packing
from bench.rollout import served
from tests.rollout import small


class RowsTest(unittest.TestCase):
  def test_programs_of_rows_follow_the_code_that_they_time(self):
    lengths = (40, 8, 20, 30, 16, 12, 9, 10)
    rng = np.random.default_rng(0)
    trajectories = [packing._trajectory(rng, *n) for n in enumerate(lengths)]
    for batches in (
      packing._padded(trajectories),
      packing._packed(trajectories),
    ):
      trained = sum(int(np.sum(batch.batch.mask)) for batch in batches)
      self.assertEqual(trained, sum(n - n // 4 for n in lengths))
    policy = small.policy()
    driver = served.make_driver(
      policy,
      [policy.init(jax.random.key(0))],
      **{"context": 32, "prefill_chunks": (8,), "slots": (2,)},
    )
    raw = served.RawSteps(policy, driver, length=32, at=16)
    compiled = programs.decode._cache_size()
    self.assertGreater(raw().wall, 0)
    self.assertEqual(programs.decode._cache_size(), compiled)
