"""Run by `snapshots_test` with eight devices: other layouts, the same bits."""

import dataclasses
import json
import sys

import jax
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.checksums import checksums
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import cache_sharding
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from tests.rollout import small, small_grammars
from tests.rollout.engine.grammar_test import spec_of
from tests.settings import COMPUTE, engine_config

ENGINE = engine_config(
  slots=(4,), context=small.CONTEXT, num_slot_sizes=1, prefill_chunks=(16,)
)


# Every axis can be split in two.
CONFIG = dataclasses.replace(small.policy().config, vocab_size=64)


def main(folder: str) -> None:
  params = Policy(CONFIG, COMPUTE).init(jax.random.key(1))
  learner = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  spread = jax.device_put(params, sharding.param_shardings(params, learner))
  same_sums = jax.tree.map(
    lambda a, b: int(a) == int(b), checksums(params), checksums(spread)
  )
  sink = SnapshotSink(folder, max_lag=0, deadline_s=60)
  Publisher(Policy(CONFIG, COMPUTE), sink, layers_apart=False).publish(
    spread, 7
  )
  sink.close()
  rollout = sharding.make_mesh({"tensor": 2}, jax.devices()[:2])
  one, sampled_on_one = _serve(folder, None)
  two, sampled_on_two = _serve(folder, rollout)
  sys.stdout.write(
    json.dumps(
      {
        "same_sums": all(jax.tree.leaves(same_sums)),
        "same_params": all(
          np.array_equal(a, b)
          for a, b in zip(
            jax.tree.leaves(one), jax.tree.leaves(two), strict=True
          )
        ),
        "devices": len(two["layers"][0]["up"]["kernel"].sharding.device_set),
        "sampled": [sampled_on_one, sampled_on_two],
      }
    )
  )


def _serve(folder, mesh):
  """Returns the params that a server on the mesh serves, and its answers."""
  policy = Policy(CONFIG, COMPUTE, mesh=mesh)
  store = ServedWeights(1)
  follower = SnapshotFollower(folder, policy, store)
  if not follower.look():
    raise RuntimeError(follower.trouble)
  engine = RolloutEngine(
    policy,
    ENGINE,
    store,
    cache_sharding=cache_sharding(mesh),
    grammars=lambda: small_grammars.grammars(CONFIG.vocab_size),
  )
  driver = LocalDriver(engine)
  futures = [
    driver.submit(small.prompt_of(3, 20), spec)
    for spec in (SamplingParams(max_tokens=30), spec_of("json"))
  ]
  driver.run_until_idle()
  sampled = [future.result(0).sampled.tolist() for future in futures]
  return store.get(0).params, sampled


if __name__ == "__main__":
  main(sys.argv[1])
