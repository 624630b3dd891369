"""A policy, a batch and a learner small enough for any test."""

import dataclasses
import functools

import jax
import numpy as np
import optax

from agentrl_jax.data.records import Group, Status
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.lora import NO_ADAPTERS
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.train_batch import BatchConfig
from agentrl_jax.train.weights.reference import Reference
from tests.data.records import make_group
from tests.settings import COMPUTE

MODEL = ModelConfig(
  vocab_size=56,
  width=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=24,
  qk_norm=True,
)
TASK_IDS = {"a": 0, "b": 1}
# Adam's first steps divide each gradient by its own size, so that all of them
# look alike, and one that is nothing but rounding moves a param as far as any.
# These steps are about the gradient itself: what is wrong in it shows.
PLAIN_STEPS = {"learning_rate": 1.0, "eps": 1.0}


advantage_config = AdvantageConfig
loss_config = functools.partial(LossConfig, kl_coefficient=0.0, token_chunk=8)


@functools.cache
def params_of(model=MODEL, seed=0):
  """Random params on the host, of which none is 0 or 1 as fresh ones are.

  They compile nothing, and nobody may change them.
  """
  draw = np.random.default_rng(seed)

  def leaf(path, of):
    if path[-1].key == "scale":
      return np.float32(draw.uniform(0.8, 1.2, of.shape))
    return np.float32(draw.normal(0, 0.2, of.shape))

  shapes = Policy(model, COMPUTE).abstract_params()
  return jax.tree_util.tree_map_with_path(leaf, shapes)


def batch_config(
  micro_batch=4, row_length=48, sharing=1, roles=()
) -> BatchConfig:
  return BatchConfig(
    row_length=row_length, micro_batch=micro_batch, sharing=sharing, roles=roles
  )


def make_batch_builder(
  *,
  model=MODEL,
  loss=None,
  advantage=None,
  micro_batch=4,
  task_ids=TASK_IDS,
  reference=None,
  teacher=None,
  make_grammars=None,
  **batch,
) -> BatchBuilder:
  return BatchBuilder(
    Policy(model, COMPUTE),
    loss=loss or loss_config(),
    advantage=advantage or advantage_config(),
    batch=batch_config(micro_batch, **batch),
    task_ids=task_ids,
    temperature=0.9,
    reference=reference
    and Reference(
      Policy(teacher or model, COMPUTE), reference, place="resident"
    ),
    make_grammars=make_grammars,
  )


def make_batches(micro_batch=4, **groups):
  """Micro-batches of `make_groups` under the base config."""
  builder = make_batch_builder(micro_batch=micro_batch)
  return builder.build(make_groups(**groups), params=None)[0]


def off_policy_batch():
  """A batch and log-probabilities for it: the policy's and another's.

  Ratios of the policy to the behavior are on both sides of every bound.

  Returns:
    (micro_batch, logprob, entropy, other_logprob)
  """
  rng = np.random.default_rng(0)
  (micro_batch,) = make_batches(micro_batch=24)
  mask = micro_batch.batch.mask

  def logprobs():
    return np.where(mask, -rng.gamma(2, 1, mask.shape), 0).astype(np.float32)

  logprob, entropy = logprobs(), -logprobs()
  noise = rng.normal(size=mask.shape)
  batch = dataclasses.replace(
    micro_batch.batch, behavior_logprob=np.float32(logprob + noise)
  )
  micro_batch = dataclasses.replace(micro_batch, batch=batch)
  return micro_batch, logprob, entropy, logprobs()


def constrained(batches):
  """Returns the batches with one of four masks at most tokens."""
  rng = np.random.default_rng(5)
  words = -(-MODEL.vocab_size // 32)
  mask_MX = rng.integers(2**32, size=(5, words), dtype=np.uint32)
  mask_MX[0] = 2**32 - 1
  return [_constrained(micro_batch, mask_MX, rng) for micro_batch in batches]


def _constrained(micro_batch, mask_MX, rng):
  batch = micro_batch.batch
  row_BT = rng.integers(len(mask_MX), size=batch.token.shape, dtype=np.int32)
  bit_BT = mask_MX[row_BT, batch.token // 32] >> (batch.token % 32) & 1
  allowed_BT = np.where(batch.mask & (bit_BT == 1), row_BT, 0).astype(np.int32)
  batch = dataclasses.replace(batch, allowed=allowed_BT, mask_MX=mask_MX)
  return dataclasses.replace(micro_batch, batch=batch)


def make_groups(seed=0, num_groups=6, full_marks=False):
  """Groups of two tasks; with `full_marks`, one attempt of each has them."""
  rng = np.random.default_rng(seed)
  groups = [
    make_group(
      rng,
      id=str(n),
      task="ab"[n % 2],
      status=Status.TASK_LIMIT_REACHED if n == 3 else None,
    )
    for n in range(num_groups)
  ]
  return [_with_full_marks(g) for g in groups] if full_marks else groups


def _with_full_marks(group: Group) -> Group:
  first, *rest = group.trajectories
  return dataclasses.replace(
    group, trajectories=(dataclasses.replace(first, reward=1.0), *rest)
  )


@functools.cache
def make_learner(
  mesh=None,
  *,
  model=MODEL,
  compute=COMPUTE,
  adaptation=NO_ADAPTERS,
  loss=None,
  learning_rate=1e-2,
  eps=1e-8,
  expert_bias_rate=0.0,
  **axes,
):
  mesh = mesh or sharding.make_mesh(axes, jax.devices()[:1])
  policy = Policy(model, compute, mesh, adaptation)
  objective = policy_objective(policy, loss or loss_config(), temperature=0.9)
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, eps=eps)
  )
  learner = Learner(
    policy, objective, optimizer, mesh, expert_bias_rate=expert_bias_rate
  )
  return policy, learner
