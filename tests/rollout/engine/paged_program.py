"""Run by `paged_test` with eight devices: heads of pages on one, or on two."""

import dataclasses
import json
import sys

import jax

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import (
  cache_sharding,
  decoding_policy,
  layout_of,
)
from tests.rollout import small
from tests.rollout.engine.reuse_test import play
from tests.settings import COMPUTE, engine_config

# A vocabulary that can be split.
CONFIG = dataclasses.replace(small.policy().config, vocab_size=64)
ENGINE = engine_config(
  slots=(4,),
  context=small.CONTEXT,
  num_slot_sizes=1,
  prefill_chunks=(16,),
  prefill_slots=4,
  prefill_tokens=128,
  steps_per_sync=3,
  page_size=8,
  cache_tokens=(104,),
)
COUNTED = ("prefilled", "reused", "copied", "evicted")


def main() -> None:
  sys.stdout.write(json.dumps([_played(1), _played(2)]))


def _played(num_devices):
  policy = decoding_policy(CONFIG, COMPUTE, jax.devices()[:num_devices])
  plain = Policy(CONFIG, COMPUTE)
  params = plain.unstacked(small.attentive(plain.init(jax.random.key(1))))
  versions = ServedWeights(1)
  versions.publish(jax.device_put(params, layout_of(policy)), 10)
  engine = RolloutEngine(
    policy, ENGINE, versions, cache_sharding=cache_sharding(policy.mesh)
  )
  answers = play(LocalDriver(engine), seed=2)
  engine.check_invariants()
  stats = engine.stats()
  arrays = jax.tree.leaves(engine._schedulers[0]._cache.arrays)
  return {
    "sampled": [answer.sampled.tolist() for answer in answers],
    "counts": [getattr(stats, f"num_{name}")[0] for name in COUNTED],
    "shards": sorted(set(map(_shards, arrays))),
  }


def _shards(array):
  """Returns the heads of each shard, and the number of devices."""
  (num_heads,) = {s.data.shape[1] for s in array.addressable_shards}
  return num_heads, len(array.sharding.device_set)


if __name__ == "__main__":
  main()
