"""Tests of what a benchmark's row keeps."""

import unittest

import jax
import numpy as np

from agentrl_jax.rollout.engine import programs
from bench import rows
from bench.learner import __main__ as learner
from bench.learner import packing
from bench.rollout import __main__ as rollout
from bench.rollout import served
from tests.rollout import small

FOUND = {
  "times_faster_than": {
    "Tunix": {"median": 1.25, "lowest": 1.0, "highest": 1.5}
  },
  "peers": {"Tunix": "0.1.7"},
  "work": {"model": {"width": 8}, "share": 0.5},
  "words": ["red", "green"],
  "host_ms": {4: {"local": [0.5, 0.25, 1.0]}},
  "hostile": [{"status": 400, "ms": 2.0}, {"status": 400, "ms": 14.0}],
}


class RowsTest(unittest.TestCase):
  def test_each_value_is_kept_with_its_range(self):
    self.assertEqual(
      [tuple(each.values()) for each in rows.flat(FOUND)],
      [
        ("times_faster_than/Tunix", 1.25, 1.0, 1.5),
        ("peers/Tunix", "0.1.7", "", ""),
        ("work/model/width", 8, "", ""),
        ("work/share", 0.5, "", ""),
        ("words", ["red", "green"], "", ""),
        ("host_ms/4/local", 0.5, 0.25, 1.0),
        ("hostile/status", 400, 400, 400),
        ("hostile/ms", 8.0, 2.0, 14.0),
      ],
    )

  def test_what_a_page_shows_is_of_benchmarks_that_there_are(self):
    quoted = rows.read_quoted()
    benchmarks = {
      *(f"learner.{row}" for row in (*learner.ROWS, *learner.NAMED)),
      *(f"rollout.{row}" for row in (*rollout.ROWS, *rollout.NAMED)),
    }
    self.assertLessEqual({benchmark for benchmark, _ in quoted}, benchmarks)
    shown = [(q["table"], q["row"], q["column"]) for q in quoted.values()]
    self.assertEqual(len(shown), len(set(shown)))

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


if __name__ == "__main__":
  unittest.main()
