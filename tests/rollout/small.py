"""A policy small enough to decode in microseconds, with reference answers."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Completion
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from tests.settings import COMPUTE, engine_config

VOCAB = 61
CONTEXT = 96


# What each kind of cache holds, in families that are published: keys and
# values; latents, which all heads share; those of two shapes; those that later
# layers read too; and states.
KINDS = {
  "plain": {},
  "latents": {
    "num_kv_heads": 4,
    "latent_dim": 12,
    "query_rank": 10,
    "rotary_key_dim": 4,
    "value_dim": 6,
  },
  "two_shapes": {
    "window": 12,
    "window_period": 2,
    "global_head_dim": 12,
    "global_kv_heads": 1,
    "keys_as_values": True,
    "value_norm": True,
  },
  "shared": {
    "num_layers": 4,
    "window": 12,
    "window_period": 2,
    "global_head_dim": 12,
    "value_norm": True,
    "shared_kv_layers": 2,
    "layer_input_dim": 6,
  },
  "states": {
    "num_layers": 3,
    "delta_period": 2,
    "delta_heads": 4,
    "delta_key_heads": 2,
    "delta_key_dim": 8,
    "delta_value_dim": 6,
    "delta_taps": 3,
  },
}
_kind = "plain"


def kind_of(name: str):
  """Makes `policy`, and all that uses it, of a kind of KINDS for a while."""
  return mock.patch(f"{__name__}._kind", name)


def policy() -> Policy:
  return _policy(_kind)


@functools.cache
def _policy(kind: str) -> Policy:
  return Policy(
    ModelConfig(
      **{
        "vocab_size": VOCAB,
        "width": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "mlp_width": 48,
      }
      | KINDS[kind]
    ),
    COMPUTE,
  )


def params(seed: int):
  return _params(_kind, seed)


@functools.cache
def _params(kind: str, seed: int):
  return attentive(_policy(kind).init(jax.random.key(seed)))


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
    store.publish(params(step), step, policy_slot=policy_slot)
  return RolloutEngine(policy(), config, store, grammars=lambda: grammars)


def answers_of(requests, steps=(10, 20), **changes) -> list[Completion]:
  """Answers requests on an engine of their own."""
  driver = LocalDriver(engine_of(steps, **changes))
  try:
    futures = [driver.submit(*request) for request in requests]
    driver.run_until_idle()
    return [future.result(0) for future in futures]
  finally:
    driver.close()


def assert_same(answer, expected, *, atol=1e-4, exact=("sampled", "version")):
  """Asserts equal tokens, and equal log-probabilities within `atol`."""
  for name in exact:
    np.testing.assert_array_equal(
      getattr(answer, name), getattr(expected, name), name
    )
  for name in ("behavior_logprob", "raw_logprob"):
    np.testing.assert_allclose(
      getattr(answer, name), getattr(expected, name), atol=atol, err_msg=name
    )


@functools.cache
def _teacher(kind: str):
  return jax.jit(_policy(kind).logits)


def teacher_logits(seed: int, tokens: np.ndarray) -> np.ndarray:
  """Returns float64 logits [T, V], of which row t is about token t + 1."""
  row = np.zeros((1, CONTEXT), np.int32)
  row[0, : len(tokens)] = tokens
  segment = (np.arange(CONTEXT) < len(tokens)).astype(np.int32)[None]
  position = np.arange(CONTEXT, dtype=np.int32)[None]
  logits = _teacher(_kind)(params(seed), row, position, jnp.asarray(segment))
  return np.asarray(logits[0, : len(tokens)], np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
  top = logits.max(-1, keepdims=True)
  return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def behavior(logits: np.ndarray, spec) -> np.ndarray:
  """Returns the log-probabilities that `spec` draws from, by rows of logits."""
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


def logprob_errors(answer, spec, logits, allowed=True) -> np.ndarray:
  """Returns how far both log-probabilities are from the learner's, by token."""
  masked = np.where(allowed, logits, -np.inf)
  expected = np.stack([behavior(row, spec) for row in masked])
  both = np.stack([expected, log_softmax(logits)])
  wanted = both[:, np.arange(len(answer.sampled)), answer.sampled]
  return np.abs([answer.behavior_logprob, answer.raw_logprob] - wanted)


def prompt_of(seed: int, size: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, VOCAB, size).astype(np.int32)


def conversation(prompt, answer: Completion, observation) -> np.ndarray:
  return np.concatenate([prompt, answer.sampled, observation]).astype(np.int32)


def assert_joined(chunks, answer: Completion):
  """Asserts that the chunks of a stream, joined, are the answer."""
  for name in ("sampled", "behavior_logprob", "raw_logprob", "version"):
    joined = np.concatenate([getattr(chunk, name) for chunk in chunks])
    np.testing.assert_allclose(joined, getattr(answer, name), atol=1e-5)
  assert {c.policy_slot for c in chunks} == {answer.policy_slot}
