"""Prints, per case on eight devices, how far an update is from one device's.

  python -m tests.train.sharded.sharded_update sample|families|table

A case is a mesh and a way to compute on it; the sample takes every axis, the
families what has layers of its own, and the table every mesh that eight devices
can form.
"""

import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.attention import packed
from agentrl_jax.model.compute import REMAT_POLICIES
from agentrl_jax.model.policy import Policy
from tests.data.records import make_branching_group
from tests.model.attention.trees import random_ends
from tests.model.policy_test import GEMMA_4, GEMMA_4_E2B, QWEN3_5
from tests.settings import COMPUTE, compute_config
from tests.train import small

DEVICES = 8
# Eight of whatever the table may split over eight devices, and a norm over all
# heads, wherever they are.
MODEL = dataclasses.replace(
  small.MODEL, num_heads=16, num_kv_heads=8, joint_qk_norm=True
)
EXPERTS = dataclasses.replace(
  MODEL, num_experts=8, experts_per_token=3, normed_experts=True, mlp_width=12
)
# Short keys and values would differ by more than the limit for rounding alone.
DELTA = QWEN3_5 | {
  "delta_heads": 8,
  "delta_key_heads": 4,
  "delta_key_dim": 16,
  "delta_value_dim": 16,
}
MODELS = {
  "dense": MODEL,
  "experts": EXPERTS,
  # Groups of experts, one that all tokens share, and a dense first layer.
  "shared experts": dataclasses.replace(
    EXPERTS,
    mlp_width=16,
    sigmoid_router=True,
    expert_groups=4,
    groups_per_token=2,
    expert_scale=2.5,
    shared_experts=1,
    dense_layers=1,
    dense_mlp_width=24,
  ),
  # DeepSeek-V3's attention.
  "latents": dataclasses.replace(
    EXPERTS,
    joint_qk_norm=False,
    qk_norm=False,
    num_heads=8,
    latent_dim=16,
    query_rank=24,
    rotary_key_dim=4,
    value_dim=6,
  ),
  # gpt-oss: experts with biases, and its attention.
  "biased experts": dataclasses.replace(
    EXPERTS,
    swiglu_limit=7.0,
    qkv_bias=True,
    o_bias=True,
    window=9,
    window_period=2,
    sinks=True,
  ),
  "windows": dataclasses.replace(
    MODEL, window=9, window_period=2, local_rope_theta=100.0, sinks=True
  ),
  "two kinds": dataclasses.replace(
    MODEL,
    joint_qk_norm=False,
    # Scores as they are make params of one device differ by more than the
    # limit, if layers are scanned or not.
    **GEMMA_4 | {"global_kv_heads": 2, "query_pre_attn_scalar": 0},
  ),
  "sharing": dataclasses.replace(MODEL, joint_qk_norm=False, **GEMMA_4_E2B),
  "delta": dataclasses.replace(MODEL, joint_qk_norm=False, **DELTA),
  "delta experts": dataclasses.replace(
    EXPERTS, joint_qk_norm=False, shared_experts=1, shared_gate=True, **DELTA
  ),
}
LOSSES: Mapping[str, Mapping[str, Any]] = {
  "tokens": {},
  "attempts": {
    "surrogate": "gspo",
    "dual_clip": 0.0,
    "reduction": "sequence_mean",
  },
}
WAYS = tuple(itertools.product((True, False), REMAT_POLICIES))


@dataclasses.dataclass(frozen=True)
class Case:
  """A mesh, and how the policy is computed on it."""

  mesh: tuple[int, ...]  # along sharding.MESH_AXES
  scan_layers: bool
  remat: str
  loss: str
  constrained: bool = False  # whether tokens were drawn under grammars
  shared: bool = False  # whether attempts share tokens, computed once
  model: str = "dense"
  replayed: bool = False  # whether tokens have experts of an engine


def table() -> Iterable[Case]:
  """Every mesh of eight devices, ways and losses in turn."""
  sizes = (1, 2, 4, 8)
  meshes = [
    shape
    for shape in itertools.product(sizes, repeat=len(sharding.MESH_AXES))
    if math.prod(shape) == DEVICES
  ]
  for n, mesh in enumerate(meshes):
    yield Case(
      mesh,
      *WAYS[n % len(WAYS)],
      loss=list(LOSSES)[n % len(LOSSES)],
      constrained=n % 3 == 0,
      model="experts" if mesh[-1] > 1 else "dense",
    )
    yield Case(
      mesh,
      *WAYS[-n % len(WAYS)],
      loss=list(LOSSES)[n % 2],
      shared=True,
      model="shared experts" if mesh[-1] > 1 else "dense",
    )


SAMPLE = (
  Case((2, 2, 2, 1, 1), True, "full", "attempts"),
  Case((2, 2, 2, 1, 1), True, "full", "attempts", model="experts"),
  Case((1, 2, 2, 2, 1), False, "none", "attempts"),
  Case((2, 1, 2, 2, 1), True, "none", "tokens", constrained=True),
  Case((1, 2, 2, 2, 1), True, "none", "attempts", shared=True),
  Case((1, 2, 2, 1, 2), True, "none", "tokens", model="shared experts"),
  Case(
    (1, 1, 1, 2, 4),
    False,
    "full",
    "attempts",
    shared=True,
    model="experts",
    replayed=True,
  ),
  Case((1, 2, 2, 2, 1), True, "full", "tokens", shared=True, model="windows"),
  Case((2, 2, 2, 1, 1), False, "none", "tokens", model="windows"),
  Case(
    (1, 2, 1, 2, 2),
    True,
    "none",
    "tokens",
    model="biased experts",
    replayed=True,
  ),
)
FAMILIES = (
  Case((1, 2, 2, 2, 1), True, "full", "tokens", shared=True, model="two kinds"),
  Case((1, 2, 2, 2, 1), True, "full", "tokens", shared=True, model="sharing"),
  Case((1, 1, 2, 2, 2), True, "full", "attempts", shared=True, model="latents"),
  Case((2, 2, 2, 1, 1), True, "full", "tokens", model="delta"),
  Case((1, 4, 2, 1, 1), False, "none", "tokens", shared=True, model="delta"),
  Case(
    (1, 2, 2, 1, 2),
    True,
    "full",
    "attempts",
    shared=True,
    model="delta experts",
    replayed=True,
  ),
)


def update(batches, mesh, model, *, loss: str, **compute):
  """Loss and params after the second of two updates."""
  policy, learner = small.make_learner(
    mesh,
    model=model,
    compute=compute_config(**compute),
    loss=small.loss_config(**LOSSES[loss]),
    expert_bias_rate=0.01 * model.sigmoid_router,
    **small.PLAIN_STEPS,
  )
  state = learner.init(_params(policy))
  for _ in range(2):
    state, metrics = learner.update(state, batches)
  return metrics["loss"], jax.tree.map(np.asarray, state.params)


@functools.cache
def _made(config):
  params = jax.jit(Policy(config, COMPUTE).init)(jax.random.key(0))
  if config.sigmoid_router:
    routers = params["layers"]["experts"]
    shape = routers["correction_bias"].shape
    routers["correction_bias"] = jax.random.normal(jax.random.key(1), shape)
  if config.expert_bias:
    experts = params["layers"]["experts"]
    for name in [name for name in experts if name.endswith("_bias")]:
      shape = experts[name].shape
      experts[name] = 0.3 * jax.random.normal(jax.random.key(2), shape)
  return params


def _params(policy: Policy):
  return jax.tree.map(np.asarray, _made(policy.config))


def compare_updates(cases: Iterable[Case]) -> dict[str, tuple[float, float]]:
  """By case, the largest difference of loss and params."""
  batches = batches_by_kind()
  one = sharding.make_mesh({}, jax.devices()[:1])

  # A tree is compared with the same attempts, each computed by itself.
  @functools.cache
  def alone(model, loss, kind, replayed):
    batch = batches["attempts" if kind == "trees" else kind]
    batch = replay(batch, model) if replayed else batch
    return update(batch, one, model, loss=loss)

  found = {}
  for case in cases:
    axes = dict(zip(sharding.MESH_AXES, case.mesh, strict=True))
    kind = "constrained" if case.constrained else "plain"
    kind = "trees" if case.shared else kind
    model = MODELS[case.model]
    batch = batches[kind]
    loss, params = update(
      replay(batch, model) if case.replayed else batch,
      sharding.make_mesh(axes),
      model,
      loss=case.loss,
      scan_layers=case.scan_layers,
      remat=case.remat,
    )
    wanted_loss, wanted = alone(model, case.loss, kind, case.replayed)
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), params, wanted)
    found[str(case)] = (
      abs(loss - wanted_loss),
      float(max(jax.tree.leaves(gaps))),
    )
  return found


def batches_by_kind():
  """Plain batches, and the same attempts as trees and each by itself."""
  plain = small.make_batches(micro_batch=8, num_groups=12)
  rng = np.random.default_rng(0)
  groups = [make_branching_group(rng, id=str(n)) for n in range(12)]
  trees, attempts = (
    small.make_batch_builder(micro_batch=8, sharing=sharing).build(
      groups, None
    )[0]
    for sharing in (8, 1)
  )
  return {
    "plain": plain,
    "constrained": small.constrained(plain),
    "trees": trees,
    "attempts": attempts,
  }


def replay(batches, model):
  """The batches with experts that tokens and their positions decide."""
  num_layers, num_chosen, dtype = model.experts_kind
  offset_LK = np.arange(num_layers * num_chosen).reshape(num_layers, -1)

  def experts_of(tokens):
    first_BT = np.asarray(tokens.token) + 3 * np.asarray(tokens.position)
    expert_BTLK = (first_BT[..., None, None] + offset_LK) % model.num_experts
    is_none_BT = np.asarray(tokens.token) % 5 == 0
    expert_BTLK[is_none_BT] = np.iinfo(dtype).max
    return dataclasses.replace(tokens, experts=expert_BTLK.astype(dtype))

  def with_experts(micro_batch):
    batch = micro_batch.batch
    if batch.tree is None:
      batch = experts_of(batch)
    else:
      batch = dataclasses.replace(batch, tree=experts_of(batch.tree))
    return dataclasses.replace(micro_batch, batch=batch)

  return [with_experts(micro_batch) for micro_batch in batches]


def compare_attention() -> dict[str, float]:
  """By kernel, how far values and gradients are from one device's."""
  rng = np.random.default_rng(0)
  length = 256  # two shares of what splash takes
  q = jnp.asarray(rng.normal(size=(4, length, 2, 2, 16)), jnp.float32)
  k, v = jnp.asarray(rng.normal(size=(2, 4, length, 2, 16)), jnp.float32)
  segment = jnp.asarray(np.cumsum(rng.random((4, length)) < 0.02, axis=1) + 1)
  end = jnp.asarray(np.stack([random_ends(rng, length) for _ in range(4)]))
  weight = jnp.asarray(rng.normal(size=q.shape), jnp.float32)
  rows = {
    "": {"segment_BT": segment},
    " trees": {"segment_BT": None, "end_BT": end},
    " windows and sinks": {
      "segment_BT": segment,
      "window": 50,
      "sink_KG": jnp.array([[0.0, 1.0], [2.0, -1.0]]),
    },
    " windows of trees": {
      "segment_BT": None,
      "end_BT": end,
      "begin_BT": jnp.maximum(jnp.arange(length) - 50, 0)[None].repeat(4, 0),
    },
  }

  def gradient(mesh, marks, **compute):
    sinks = marks.get("sink_KG")

    def total(q, k, v, sinks):
      out = packed.attend(
        q,
        k,
        v,
        **marks | {"sink_KG": sinks},
        compute=compute_config(**compute),
        mesh=mesh,
      )
      return jnp.sum(out * weight), out

    which = (0, 1, 2) if sinks is None else (0, 1, 2, 3)
    return jax.jit(jax.grad(total, which, has_aux=True))(q, k, v, sinks)

  mesh = sharding.make_mesh({"fsdp": 2, "tensor": 2, "sequence": 2})
  ways = {
    "xla": {"attention": "xla"},
    "blocks": {"attention": "xla", "attention_block": 48},
    "splash": {"attention": "splash", "attention_block": 128},
  }
  found = {}
  for kind, marks in rows.items():
    wanted = gradient(None, marks, attention="xla")
    for way, compute in ways.items():
      gaps = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()),
        gradient(mesh, marks, **compute),
        wanted,
      )
      found[way + kind] = max(jax.tree.leaves(gaps))
  return found


def main() -> None:
  """Compares the cases that are named with one device."""
  name = sys.argv[1]
  cases = {"sample": SAMPLE, "families": FAMILIES, "table": table()}[name]
  attention = {} if name == "families" else compare_attention()
  found = {"updates": compare_updates(cases), "attention": attention}
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
