"""Run by `placement_test` with eight devices: slices give the same tokens."""

import dataclasses
import functools
import json
import sys
import tempfile

import jax
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import layout_of, places_apart
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from tests.rollout import small
from tests.settings import COMPUTE, compute_config, engine_config

# Every axis can be split in two.
CONFIG = dataclasses.replace(small.policy().config, vocab_size=64)
SLICES = (2, 1)
ENGINE = engine_config(
  slots=(2, 2),
  context=small.CONTEXT,
  num_slot_sizes=1,
  prefill_chunks=(16,),
  slices=SLICES,
)


def main() -> None:
  learner = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  policy = Policy(CONFIG, COMPUTE, mesh=learner)
  versions = [
    jax.device_put(params, sharding.param_shardings(params, learner))
    for params in (policy.init(jax.random.key(seed)) for seed in range(2))
  ]
  together = _publish(policy, versions, ServedWeights(2), None)
  apart = _publish(policy, versions, ServedWeights(2), _places())
  followed = _follow(policy, versions)
  sys.stdout.write(
    json.dumps(
      {
        "together": _answers(
          RolloutEngine(
            Policy(CONFIG, COMPUTE),
            dataclasses.replace(ENGINE, slices=()),
            together,
          )
        ),
        "apart": _answers(_engine(apart)),
        "followed": _answers(_engine(followed)),
        "devices": [_devices(apart), _devices(followed)],
        "caches": _caches(_engine(apart)),
      }
    )
  )


@functools.cache  # with their compiled programs
def _places():
  return places_apart(CONFIG, compute_config(), SLICES)


def _engine(store):
  return RolloutEngine(Policy(CONFIG, COMPUTE), ENGINE, store, places=_places())


def _publish(policy, versions, store, places):
  """Publishes weights as the learner's own process does."""
  to = places and [layout_of(place) for place in places]
  if to is None:  # whole, on one device
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    to = [whole] * len(versions)
  publisher = Publisher(policy, store, to=to)
  for policy_slot, params in enumerate(versions):
    publisher.publish(params, 10 * policy_slot, policy_slot=policy_slot)
  return store


def _follow(policy, versions):
  """Reads snapshots of the weights as a rollout server does."""
  store = ServedWeights(2)
  with tempfile.TemporaryDirectory() as folder:
    sink = SnapshotSink(folder, max_lag=0, deadline_s=60)
    publisher = Publisher(policy, sink, layers_apart=False)
    for policy_slot, params in enumerate(versions):
      publisher.publish(params, 10 * policy_slot, policy_slot=policy_slot)
    sink.close()
    meshes = [place.mesh for place in _places()]
    follower = SnapshotFollower(
      folder, Policy(CONFIG, COMPUTE), store, meshes=meshes
    )
    if not follower.look():
      raise RuntimeError(follower.trouble)
  return store


def _answers(engine):
  """Answers two requests of every policy slot at once."""
  driver = LocalDriver(engine)
  futures = [
    driver.submit(
      small.prompt_of(3 + number, 20),
      SamplingParams(max_tokens=30, policy_slot=policy_slot, seed=number),
    )
    for policy_slot in range(2)
    for number in range(2)
  ]
  driver.run_until_idle()
  answers = [future.result(0) for future in futures]
  return [
    [answer.sampled.tolist(), np.unique(answer.version).tolist()]
    for answer in answers
  ]


def _caches(engine):
  return [_ids(s._cache.arrays) for s in engine._schedulers]


def _devices(store):
  return [_ids(store.get(policy_slot).params) for policy_slot in range(2)]


def _ids(arrays):
  return sorted(
    {
      device.id
      for leaf in jax.tree.leaves(arrays)
      for device in leaf.sharding.device_set
    }
  )


if __name__ == "__main__":
  main()
