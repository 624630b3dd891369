"""A policy, a batch and a learner small enough for any test."""

import jax
import numpy as np
import optax

from agentrl_jax.data.trajectory import Status
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.batches import AdvantageConfig, BatchConfig
from agentrl_jax.train.objective import LossConfig, policy_objective
from agentrl_jax.train.step import Learner
from tests.data.records import make_group

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
ADVANTAGE = AdvantageConfig(
  scale_by_std=True,
  task_center=True,
  task_scale=True,
  drop_no_signal=False,
  incomplete_reward=-0.2,
  epsilon=1e-6,
)
TASK_IDS = {"a": 0, "b": 1}


def loss_config(**changes) -> LossConfig:
  return LossConfig(
    **{
      "surrogate": "clipped",
      "reduction": "token_mean",
      "clip_low": 0.2,
      "clip_high": 0.2,
      "dual_clip": 3.0,
      "kl_coefficient": 0.0,
      "entropy_coefficient": 0.0,
      "token_chunk": 8,
      **changes,
    }
  )


def make_groups(seed=0, num_groups=6):
  rng = np.random.default_rng(seed)
  return [
    make_group(
      rng,
      id=str(n),
      task="ab"[n % 2],
      status=Status.TASK_LIMIT_REACHED if n == 3 else None,
    )
    for n in range(num_groups)
  ]


def make_learner(mesh=None, *, loss=None, learning_rate=1e-2, **axes):
  policy = Policy(MODEL)
  mesh = mesh or sharding.make_mesh(axes, jax.devices()[:1])
  objective = policy_objective(policy, loss or loss_config(), temperature=0.9)
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(learning_rate)
  )
  return policy, Learner(policy, objective, optimizer, mesh)


def batch_config(micro_batch=4, row_length=48) -> BatchConfig:
  return BatchConfig(row_length=row_length, micro_batch=micro_batch)
