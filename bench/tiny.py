"""Model, batch and learner that the learner's benchmarks share.

W-tiny: the shape of Qwen3 with 16384 vocabulary entries, width 512, MLP 1536, 8
layers, 8 query heads over 2 key/value heads, 64 channels each, tied embeddings:
32.5 M params, float32.

Axes: B rows, T tokens.
"""

import dataclasses
import pathlib

import jax
import numpy as np
import optax

from agentrl_jax.data.batch import Batch
from agentrl_jax.model import sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.train_batch import TrainBatch

MODEL = ModelConfig(
  vocab_size=16384,
  width=512,
  mlp_width=1536,
  num_layers=8,
  num_heads=8,
  num_kv_heads=2,
  head_dim=64,
  qk_norm=True,
  rope_theta=1e6,
)
# What these rows want on a CPU; the numbers that come out are the same.
COMPUTE = ComputeConfig(attention_block=64)
TILES = {"token_chunk": 256}
CLIP, RATE, CONTEXT = 0.2, 1e-5, 512
OPTIMIZER = {"b1": 0.9, "b2": 0.999, "weight_decay": 0.01}
CLIP_NORM = 1.0


def loss_config(**changes) -> LossConfig:
  """Computes the clipped surrogate as a mean over tokens."""
  settings = TILES | {"kl_coefficient": 0.0, "dual_clip": 0.0}
  settings |= {"reduction": "token_mean", "task_share": "tokens"}
  return LossConfig(**settings | changes)


def make_learner(
  model: ModelConfig = MODEL,
  compute: ComputeConfig = COMPUTE,
  loss: LossConfig | None = None,
) -> tuple[Policy, Learner]:
  """Makes a policy and its learner on the first device."""
  mesh = sharding.make_mesh({}, jax.devices()[:1])
  policy = Policy(model, compute, mesh)
  optimizer = optax.chain(
    optax.clip_by_global_norm(CLIP_NORM), optax.adamw(RATE, **OPTIMIZER)
  )
  objective = policy_objective(policy, loss or loss_config(), temperature=1.0)
  return policy, Learner(policy, objective, optimizer, mesh)


def make_micro_batch(rows: int, tokens: int, seed: int = 0) -> TrainBatch:
  """Random full rows, one trajectory each; all but the first tokens count."""
  rng = np.random.default_rng(seed)
  shape = (rows, tokens)
  token_BT = rng.integers(0, MODEL.vocab_size, shape).astype(np.int32)
  # About what a fresh model says, so that some ratios are clipped.
  logprob_BT = rng.normal(-np.log(MODEL.vocab_size) - 0.5, 0.5, shape)
  mask_BT = np.tile(np.arange(tokens) > 0, (rows, 1))
  batch = Batch(
    token=token_BT,
    position=np.tile(np.arange(tokens, dtype=np.int32), (rows, 1)),
    segment=np.ones(shape, np.int32),
    mask=mask_BT,
    behavior_logprob=np.where(mask_BT, logprob_BT, 0).astype(np.float32),
    trajectory=np.tile(np.arange(rows, dtype=np.int32)[:, None], (1, tokens)),
    turn=np.zeros(shape, np.int32),
    policy_slot=np.zeros(shape, np.int32),
  )
  return TrainBatch(batch, rng.standard_normal(shape).astype(np.float32))


def write_model(folder: pathlib.Path, params, model=MODEL) -> pathlib.Path:
  """Writes the params as a folder that transformers reads."""
  write_params(folder, params, model, context=CONTEXT, dtype="float32")
  return folder


def arithmetic(micro_batch: TrainBatch, num_params: int, model=MODEL) -> float:
  """Operations of an update: those of products, attention's lower half only.

    tokens * (6 params + 6 layers * heads * channels * mean segment)

  Params count the output matrix and, where that is another, not the embedding;
  the optimizer counts for nothing.
  """
  position_BT = micro_batch.batch.position[micro_batch.batch.segment > 0]
  seen = 2 * float(np.mean(position_BT + 1))  # the mean segment, by tokens
  attended = model.num_layers * model.num_heads * model.head_dim * seen
  return 6 * position_BT.size * (num_params + attended)


def arrays(micro_batch: TrainBatch) -> dict[str, np.ndarray]:
  """Returns the arrays of a micro-batch that a peer needs."""
  fields = {
    name: getattr(micro_batch.batch, name)
    for name in ("token", "mask", "behavior_logprob")
  }
  return fields | {"advantage": micro_batch.advantage}


def work_of(model: ModelConfig) -> dict[str, object]:
  """Returns the model's sizes, to print beside a result."""
  names = (
    "vocab_size",
    "width",
    "mlp_width",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
  )
  return {
    name: value
    for name, value in dataclasses.asdict(model).items()
    if name in names
  }
