"""The compiled programs of the engine: prefill, decode, copies of the cache.

Each is compiled once per shape and called with the params of any version. A
call may name its slots: their cache is taken out, computed on and put back.
Decoding all slots takes nothing out and updates the cache in place. Cache and
slot state are donated: the caller owns them and continues with what is
returned.

Axes: B slots of the cache, P slots taken out, C tokens of a chunk, F fields of
a slot's state, R fields of a record, W words of a grammar's mask.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.model.cache import (
  KVCache,
  put_blocks,
  put_slots,
  take_blocks,
  take_slots,
)
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import MAX_STOPS
from agentrl_jax.rollout.engine import sampling
from agentrl_jax.rollout.engine.sampling import Shaping

STOPS = tuple(f"stop_{n}" for n in range(MAX_STOPS))
# Fields of a slot's state, one int32 row per slot; floats are stored as bits.
STATE = (
  "token",  # input of the next step
  "position",  # of that token
  "count",  # tokens sampled for this request
  "budget",  # tokens that it may sample
  "active",  # 0 also between the calls of a slot with a grammar
  "temperature",
  "top_k",
  "top_p",
  "min_p",
  *STOPS,
  "seed_high",
  "seed_low",
)
# Fields of a record, one int32 row per slot and decode step.
# If any slot is shaped, the ids of the likeliest tokens and the bits of their
# log-probabilities follow.
RECORD = ("token", "active", "count", "done", "behavior", "raw", "version")
TOKEN, ACTIVE, COUNT, DONE, BEHAVIOR, RAW, VERSION = range(len(RECORD))
NO_STOP = -1  # value of unused stops; not the id of any token


def empty_state(num_slots: int) -> jax.Array:
  """Allocates the state of slots without requests."""
  return jnp.zeros((num_slots, len(STATE)), jnp.int32)


@functools.partial(
  jax.jit,
  static_argnames=("policy", "num_steps"),
  donate_argnames=("cache", "state_BF", "shaping"),
)
def decode(
  policy: Policy,
  params: Any,
  cache: KVCache,
  state_BF: jax.Array,
  patch_BF: jax.Array,
  patched_B: jax.Array,
  slot_P: jax.Array | None,
  version: jax.Array,
  allowed_PW: jax.Array | None = None,
  shaping: Shaping | None = None,
  *,
  num_steps: int,
) -> tuple[KVCache, jax.Array, jax.Array, Shaping | None]:
  """Samples up to `num_steps` tokens per slot; stops early if all are done.

  Args:
    policy: static, as is `num_steps`.
    params: of the version to sample from.
    cache: donated.
    state_BF: donated.
    patch_BF: replaces the state of slots that start or were cancelled.
    patched_B: slots whose state is replaced.
    slot_P: the slots to compute, None: all.
    version: stamped on each record.
    allowed_PW: masks of grammars; then `num_steps` is 1, and slots with an
      empty mask, active or not, stay as they are.
    shaping: donated; None if no slot is shaped.
    num_steps: decode steps.

  Returns:
    The cache, the state, the records [num_steps, P, R], and `shaping`.
  """
  state_BF = jnp.where(patched_B[:, None], patch_BF, state_BF)
  taken = cache if slot_P is None else take_slots(cache, slot_P)
  state_PF = _rows(state_BF, slot_P)
  state = dict(zip(STATE, state_PF.T, strict=True))
  shaped = None if shaping is None else sampling.take_shaping(shaping, slot_P)
  active_P = state["active"]
  if allowed_PW is not None:
    called_P = jnp.any(allowed_PW > 0, axis=-1)
    allowed_PW = jnp.where(called_P[:, None], allowed_PW, ~jnp.uint32(0))
    state["active"] = called_P.astype(jnp.int32)

  def is_unfinished(carry):
    i, _, state, _, _ = carry
    return (i < num_steps) & jnp.any(state["active"] > 0)

  def step(carry):
    i, taken, state, shaped, record = carry
    taken, state, shaped, row_PR = _decode_step(
      policy, params, taken, state, version, allowed_PW, shaped
    )
    return i + 1, taken, state, shaped, record.at[i].set(row_PR)

  num_fields = len(RECORD)
  if shaping is not None:
    num_fields += 2 * sampling.num_alternatives(shaping.bias_BV.shape[1])
  shape = (num_steps, state_PF.shape[0], num_fields)
  _, taken, state, shaped, record = jax.lax.while_loop(
    is_unfinished, step, (0, taken, state, shaped, jnp.zeros(shape, jnp.int32))
  )
  if shaping is not None:
    shaping = sampling.put_counts(shaping, slot_P, shaped.count_BV)
  if allowed_PW is not None:
    state["active"] = jnp.where(called_P, 0, active_P)
  state_PF = jnp.stack([state[name] for name in STATE], axis=-1)
  if slot_P is None:
    return taken, state_PF, record, shaping
  return (
    put_slots(cache, slot_P, taken),
    state_BF.at[slot_P].set(state_PF, mode="drop"),
    record,
    shaping,
  )


def _rows(state_BF: jax.Array, slot_P: jax.Array | None) -> jax.Array:
  if slot_P is None:
    return state_BF
  return state_BF.at[slot_P].get(mode="fill", fill_value=0)


def _decode_step(policy, params, cache, state, version, allowed_PW, shaping):
  """Samples one token for each active slot; the others stay as they are."""
  active_P = state["active"] > 0
  hidden_P1D, cache = policy.extend(
    params,
    cache,
    state["token"][:, None],
    state["position"],
    state["active"],
  )
  position_P = state["position"] + state["active"]
  sample = sampling.sample(
    policy.unembed(params, hidden_P1D[:, 0]),
    temperature_B=_floats(state["temperature"]),
    top_k_B=state["top_k"],
    top_p_B=_floats(state["top_p"]),
    min_p_B=_floats(state["min_p"]),
    key_B=sampling.slot_keys(state["seed_high"], state["seed_low"], position_P),
    allowed_BW=allowed_PW,
    shaping=shaping,
  )
  count_P = state["count"] + state["active"]
  stopped_P = functools.reduce(
    jnp.logical_or, (sample.token_B == state[name] for name in STOPS)
  )
  done_P = stopped_P | (count_P >= state["budget"])
  record = {
    "token": sample.token_B,
    "active": state["active"],
    "count": count_P,
    "done": done_P & active_P,
    "behavior": _bits(sample.behavior_logprob_B),
    "raw": _bits(sample.raw_logprob_B),
    "version": jnp.broadcast_to(version, active_P.shape),
  }
  state = state | {
    "token": jnp.where(active_P, sample.token_B, state["token"]),
    "position": position_P,
    "count": count_P,
    "active": state["active"] * ~done_P,
  }
  row_PR = jnp.stack([record[name].astype(jnp.int32) for name in RECORD], -1)
  if shaping is not None:
    shaping = sampling.count_tokens(shaping, sample.token_B, record["active"])
    alternatives = [sample.top_token_BK, _bits(sample.top_logprob_BK)]
    row_PR = jnp.concatenate([row_PR, *alternatives], axis=-1)
  return cache, state, shaping, row_PR


@functools.partial(
  jax.jit,
  static_argnames=("policy",),
  donate_argnames=("cache",),
)
def prefill(
  policy: Policy,
  params: Any,
  cache: KVCache,
  token_PC: jax.Array,
  start_P: jax.Array,
  length_P: jax.Array,
  slot_P: jax.Array,
) -> KVCache:
  """Writes the keys and values of the next tokens of the named slots."""
  taken = take_slots(cache, slot_P)
  _, taken = policy.extend(params, taken, token_PC, start_P, length_P)
  return put_slots(cache, slot_P, taken)


@functools.partial(jax.jit, donate_argnames=("cache",))
def copy(cache: KVCache, source_P: jax.Array, target_P: jax.Array) -> KVCache:
  """Copies slots over slots; all are read before any is written."""
  return put_slots(cache, target_P, take_slots(cache, source_P))


@functools.partial(jax.jit, donate_argnames=("pool",))
def save(
  pool: KVCache,
  cache: KVCache,
  slot_N: jax.Array,
  index_N: jax.Array,
  block_N: jax.Array,
) -> KVCache:
  """Copies blocks of slots to a pool, whose slots are one block long."""
  blocks = take_blocks(cache, slot_N, index_N, pool[0][0].shape[2])
  return put_slots(pool, block_N, blocks)


@functools.partial(jax.jit, donate_argnames=("cache",))
def fill(
  cache: KVCache,
  pool: KVCache,
  block_N: jax.Array,
  slot_N: jax.Array,
  index_N: jax.Array,
) -> KVCache:
  """Copies blocks of a pool to slots; blocks past a slot's end are dropped."""
  return put_blocks(cache, slot_N, index_N, take_slots(pool, block_N))


@jax.jit
def read(pool: KVCache, block_N: jax.Array) -> KVCache:
  """Copies blocks of a pool to new arrays."""
  return take_slots(pool, block_N)


@functools.partial(jax.jit, donate_argnames=("pool",))
def upload(pool: KVCache, block_N: jax.Array, blocks: KVCache) -> KVCache:
  """Writes blocks to a pool."""
  return put_slots(pool, block_N, blocks)


@functools.partial(jax.jit, static_argnames=("cache_length",))
def resize(cache: KVCache, *, cache_length: int) -> KVCache:
  """Changes how many tokens per slot the cache has room for."""

  def resized(x_BKSH):
    added = max(cache_length - x_BKSH.shape[2], 0)
    grown = jnp.pad(x_BKSH, ((0, 0), (0, 0), (0, added), (0, 0)))
    return grown[:, :, :cache_length]

  return jax.tree.map(resized, cache)


def _floats(bits: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _bits(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
