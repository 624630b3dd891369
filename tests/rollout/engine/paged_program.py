"""Run by `paged_test` with eight devices: heads of pages on one, or on two."""

import dataclasses
import json
import sys

import jax

from agentrl_jax.rollout.drivers.driver import LocalDriver
from tests.rollout.engine import sharded_cache_program as rows
from tests.rollout.engine.reuse_test import play

ENGINE = dataclasses.replace(
  rows.ENGINE,
  slots=(4,),
  page_size=8,
  cache_tokens=(104,),
  prefix_cache_tokens=0,
  prefix_cache_host_tokens=0,
)
COUNTED = ("prefilled", "reused", "copied", "evicted")


def main() -> None:
  sys.stdout.write(json.dumps([_played(1), _played(2)]))


def _played(num_devices):
  engine = rows._engine(num_devices, ENGINE)
  answers = play(LocalDriver(engine), seed=2)
  engine.check_invariants()
  stats = engine.stats()
  arrays = jax.tree.leaves(engine._schedulers[0]._cache.arrays)
  return {
    "sampled": [answer.sampled.tolist() for answer in answers],
    "counts": [getattr(stats, f"num_{name}")[0] for name in COUNTED],
    "shards": sorted(set(map(rows._shards, arrays))),
  }


if __name__ == "__main__":
  main()
