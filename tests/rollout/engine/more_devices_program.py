"""Run by `placement_test`: eight devices answer with one or two heads.

Prints the answers of one device and of eight, by case; those of weights that a
learner on another mesh published, of its snapshots, and of a Hugging Face
folder; and the part of each kind of array that a device holds.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

import jax

from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.model.quantization import Quantized, quantize
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.engine.placement import (
  cache_sharding,
  decoding_policy,
  layout_of,
)
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from tests.rollout import small
from tests.settings import COMPUTE, compute_config, engine_config

BASE = dataclasses.replace(
  small.policy().config, vocab_size=64, mlp_width=64, width=64
)
EXPERTS = {"num_experts": 8, "experts_per_token": 3, "normed_experts": True}
SHARED = EXPERTS | {
  "sigmoid_router": True,
  "expert_groups": 4,
  "groups_per_token": 2,
  "shared_experts": 1,
  "dense_layers": 1,
  "dense_mlp_width": 32,
}
# Queries of a head that four devices can share, that they cannot, and of the
# only head; the kernel of a TPU, in Pallas's interpreter; drafts; experts.
# The first has a norm over all heads, wherever they are.
CASES = {
  "shared": (
    {"num_heads": 8, "num_kv_heads": 2, "qk_norm": True, "joint_qk_norm": True},
    {},
    {},
  ),
  "copied": ({"num_heads": 6, "num_kv_heads": 2, "qkv_bias": True}, {}, {}),
  "one head": ({"num_heads": 4, "num_kv_heads": 1}, {}, {}),
  "ragged": (
    {"num_heads": 8, "num_kv_heads": 2},
    {"cache_attention": "ragged"},
    {"context": 128, "page_size": 128},
  ),
  "latents": (
    {
      "num_heads": 2,
      "num_kv_heads": 2,
      "latent_dim": 12,
      "rotary_key_dim": 4,
      "value_dim": 6,
    },
    {"cache_attention": "ragged"},
    {"context": 128, "page_size": 128},
  ),
  "drafts": ({"num_heads": 8, "num_kv_heads": 2}, {}, {"draft_tokens": 2}),
  "experts": (
    {"num_heads": 8, "num_kv_heads": 2} | EXPERTS,
    {},
    {"router_replay": True},
  ),
  "shared experts": ({"num_heads": 8, "num_kv_heads": 2} | SHARED, {}, {}),
  "int8": (
    {"num_heads": 8, "num_kv_heads": 2, "tied_embedding": False},
    {},
    {"weights": "int8"},
  ),
  "fp8 experts": (
    {"num_heads": 8, "num_kv_heads": 2} | SHARED,
    {},
    {"weights": "fp8"},
  ),
}


def main(*names: str) -> None:
  """Runs the cases of these names, and `weights`; without names all."""
  found = {
    name: _case(*changes)
    for name, changes in CASES.items()
    if not names or name in names
  }
  weights = None
  if not names or "weights" in names:
    weights = [
      _ways({"fsdp": 4, "tensor": 2}),
      _ways({"fsdp": 2, "tensor": 2, "expert": 2}, **SHARED),
      _ways({"fsdp": 4, "tensor": 2}, weights="int8", tied_embedding=False),
    ]
  sys.stdout.write(json.dumps({"cases": found, "weights": weights}))


def _case(model, compute, engine):
  config = dataclasses.replace(BASE, **model)
  settings = compute_config(**compute)
  params = small.attentive(Policy(config, COMPUTE).init(jax.random.key(1)))
  answers, shares = [], {}
  for num_devices in (1, 8):
    policy = _policy(config, settings, num_devices)
    kind = engine.get("weights", "full")
    weights = jax.device_put(
      policy.unstacked(quantize(params, kind)), layout_of(policy, kind)
    )
    answers.append(_answers(policy, weights, engine, shares))
  return {"answers": answers, "shares": shares}


def _ways(mesh, weights="full", **model):
  """The same weights by every way that they come to a server."""
  config = dataclasses.replace(BASE, num_heads=8, num_kv_heads=2, **model)
  learner = sharding.make_mesh(mesh)
  policy = Policy(config, COMPUTE, mesh=learner)
  params = small.attentive(policy.init(jax.random.key(2)))
  params = jax.device_put(params, sharding.param_shardings(params, learner))
  served = _policy(config, COMPUTE, 8)
  published, followed = ServedWeights(1), ServedWeights(1)
  Publisher(
    policy, published, to=layout_of(served, weights), weights=weights
  ).publish(params, 10)
  with tempfile.TemporaryDirectory() as folder:
    sink = SnapshotSink(folder, max_lag=0, deadline_s=60)
    Publisher(policy, sink, layers_apart=False).publish(params, 10)
    sink.close()
    follower = SnapshotFollower(folder, served, followed, weights=weights)
    if not follower.look():
      raise RuntimeError(follower.trouble)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder) / "model"
    write_params(root, params, config, context=64)
    read = served.unstacked(
      quantize(read_params(root, Policy(config, COMPUTE), served.mesh), weights)
    )
  whole = _policy(config, COMPUTE, 1)
  alone = jax.device_put(
    Policy(config, COMPUTE).unstacked(
      quantize(jax.device_get(params), weights)
    ),
    layout_of(whole, weights),
  )
  layouts: dict[str, dict] = {name: {} for name in ("published", "followed")}
  return {
    "answers": [
      _answers(whole, alone, {}, {}),
      _answers(served, published.get(0).params, {}, layouts["published"]),
      _answers(served, followed.get(0).params, {}, layouts["followed"]),
      _answers(served, read, {}, {}),
    ],
    "layouts": layouts,
  }


def _policy(config, compute, num_devices):
  return decoding_policy(config, compute, jax.devices()[:num_devices])


def _answers(policy, weights, changes, shares):
  settings = {
    "slots": (3,),
    "context": small.CONTEXT,
    "num_slot_sizes": 1,
    "prefill_chunks": (16,),
    **changes,
  }
  versions = ServedWeights(1)
  versions.publish(weights, 10)
  engine = RolloutEngine(
    policy,
    engine_config(**settings),
    versions,
    cache_sharding=cache_sharding(policy.mesh),
  )
  driver = LocalDriver(engine)
  futures = [
    driver.submit(
      small.prompt_of(3 + number % 3, 20 + number),
      SamplingParams(max_tokens=12, seed=number),
    )
    for number in range(4)
  ]
  driver.run_until_idle()
  if policy.mesh is not None:
    (scheduler,) = engine._schedulers
    layer = weights["layers"][0]
    shares |= {
      "mlp": _share(layer.get("experts", layer)["gate"]),
      "queries": _share(layer["attention"]["q"]["kernel"]),
      "keys": _share(
        layer["attention"]["kv_up" if policy.config.latent_dim else "k"][
          "kernel"
        ]
      ),
      "vocabulary": _share(weights["embedding"]),
      "cache": _share(jax.tree.leaves(scheduler._cache.arrays)[0]),
    }
  answers = [future.result(0) for future in futures]
  return [
    [
      answer.sampled.tolist(),
      None if answer.experts is None else answer.experts.tolist(),
    ]
    for answer in answers
  ]


def _share(array) -> float:
  """Returns the part of an array, or a kernel, that each device holds."""
  array = array["kernel"] if isinstance(array, dict) else array
  array = array.values if isinstance(array, Quantized) else array
  (size,) = {shard.data.size for shard in array.addressable_shards}
  return size / array.size


if __name__ == "__main__":
  main(*sys.argv[1:])
