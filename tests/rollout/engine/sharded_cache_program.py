"""Run by `reuse_test` with eight devices: heads on one device, or on two."""

import collections
import dataclasses
import json
import sys

import jax

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import layout_of, places_apart
from tests.rollout import small
from tests.rollout.engine.reuse_test import play
from tests.settings import COMPUTE, compute_config, engine_config

# A vocabulary that can be split.
CONFIG = dataclasses.replace(small.policy().config, vocab_size=64)
ENGINE = engine_config(
  slots=(3,),
  context=small.CONTEXT,
  num_slot_sizes=1,
  prefill_chunks=(16,),
  prefill_slots=4,
  prefill_tokens=128,
  steps_per_sync=3,
  block_size=8,
  prefix_cache_tokens=176,
  prefix_cache_host_tokens=240,
)
COUNTED = ("prefilled", "reused", "copied", "restored", "stored")


def main() -> None:
  sys.stdout.write(json.dumps([_played(1), _played(2)]))


def _played(num_devices):
  engine = _engine(num_devices)
  (scheduler,) = engine._schedulers
  moved = _count_moves(scheduler._cache._prefix_cache)
  answers = play(LocalDriver(engine), seed=2)
  stats = engine.stats()
  arrays = jax.tree.leaves(
    [scheduler._cache.arrays, scheduler._cache._pool._pool]
  )
  return {
    "sampled": [answer.sampled.tolist() for answer in answers],
    "reused": [answer.num_reused for answer in answers],
    "counts": [getattr(stats, f"num_{name}")[0] for name in COUNTED],
    "failures": stats.num_store_failures[0],
    "moved": moved,
    "shards": sorted(set(map(_shards, arrays))),
  }


def _engine(num_devices, config=ENGINE):
  (place,) = places_apart(CONFIG, compute_config(), (num_devices,))
  plain = Policy(CONFIG, COMPUTE)
  params = plain.unstacked(small.attentive(plain.init(jax.random.key(1))))
  versions = ServedWeights(1)
  versions.publish(jax.device_put(params, layout_of(place)), 10)
  return RolloutEngine(place.policy, config, versions, places=[place])


def _count_moves(cache):
  """Counts blocks that are copied to the host and back."""
  moved, take = collections.Counter(), cache.take_batch

  def take_and_count():
    batch = take()
    moved.update(offloads=len(batch.offloads), uploads=len(batch.uploads))
    return batch

  cache.take_batch = take_and_count
  return moved


def _shards(array):
  """Returns the heads of each shard, and the number of devices."""
  (num_heads,) = {s.data.shape[1] for s in array.addressable_shards}
  return num_heads, len(array.sharding.device_set)


if __name__ == "__main__":
  main()
