"""A policy small enough to decode in microseconds, with reference answers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Completion
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.weights import ServedWeights
from tests.settings import COMPUTE, engine_config

VOCAB = 61
CONTEXT = 96


@functools.cache
def policy() -> Policy:
  return Policy(
    ModelConfig(
      vocab_size=VOCAB,
      width=32,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=8,
      mlp_width=48,
    ),
    COMPUTE,
  )


@functools.cache
def params(seed: int):
  return attentive(policy().init(jax.random.key(seed)))


def attentive(params):
  """Scales attention so that earlier tokens decide the next one."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf * (8 if _is_attended(path) else 1), params
  )


def _is_attended(path) -> bool:
  names = [str(entry.key) for entry in path]
  return "attention" in names and "o" in names


def engine_of(
  steps=(10, 20),
  *,
  store: ServedWeights | None = None,
  grammars=None,
  **changes,
) -> RolloutEngine:
  """An engine whose policy slot i serves params(step), published as that
  step.
  """
  settings = dict(
    slots=(4,) * len(steps),
    context=CONTEXT,
    num_slot_sizes=1,
    prefill_chunks=(16,),
    prefill_slots=4,
    prefill_tokens=128,
    steps_per_sync=3,
  )
  config = engine_config(**(settings | changes))
  store = store or ServedWeights(len(steps))
  for policy_slot, step in enumerate(steps):
    store.publish(policy_slot, params(step), step)
  return RolloutEngine(policy(), config, store, grammars=lambda: grammars)


@functools.cache
def _teacher():
  return jax.jit(policy().logits)


def teacher_logits(seed: int, tokens: np.ndarray) -> np.ndarray:
  """Float64 logits [T, V]; row t is about token t + 1."""
  row = np.zeros((1, CONTEXT), np.int32)
  row[0, : len(tokens)] = tokens
  segment = (np.arange(CONTEXT) < len(tokens)).astype(np.int32)[None]
  position = np.arange(CONTEXT, dtype=np.int32)[None]
  logits = _teacher()(params(seed), row, position, jnp.asarray(segment))
  return np.asarray(logits[0, : len(tokens)], np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
  top = logits.max(-1, keepdims=True)
  return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def behavior(logits: np.ndarray, spec) -> np.ndarray:
  """Log-probabilities that `spec` draws from, one row of logits at a time."""
  if spec.temperature == 0:
    greedy = np.full_like(logits, -np.inf)
    greedy[logits.argmax()] = 0
    return greedy
  scaled = logits / spec.temperature
  order = np.argsort(-scaled, kind="stable")
  order = order[np.exp(scaled[order] - scaled.max()) >= spec.min_p]
  kept = order[: spec.top_k or len(order)]
  weight = np.exp(log_softmax(scaled[kept]))
  before = np.cumsum(weight) - weight
  kept = kept[(before < spec.top_p) | (spec.top_p >= 1)]
  truncated = np.full_like(scaled, -np.inf)
  truncated[kept] = scaled[kept]
  return log_softmax(truncated)


def prompt_of(seed: int, size: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, VOCAB, size).astype(np.int32)


def conversation(prompt, answer: Completion, observation) -> np.ndarray:
  return np.concatenate([prompt, answer.sampled, observation]).astype(np.int32)
