"""The programs that run on the device: prefill, decode, copy.

Each is compiled once per shape and called with whichever version's params. A
call may name the slots it works on: their cache is taken out, worked on and put
back. Decoding all slots takes nothing out, and works on the cache where it is.
Cache and slot state are donated: whoever calls owns them and goes on with what
is returned.

Axes: B slots of the cache, P slots taken out, C tokens of a chunk, F fields of
a slot's state, W words of a grammar's mask.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.cache import (
  KVCache,
  put_blocks,
  put_slots,
  take_blocks,
  take_slots,
)
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import MAX_STOPS, SamplingSpec
from agentrl_jax.rollout.engine import sampling
from agentrl_jax.rollout.engine import shaping as shape_of
from agentrl_jax.rollout.engine.shaping import Shaping

STOPS = tuple(f"stop_{n}" for n in range(MAX_STOPS))
# Fields of a slot's state, one int32 row per slot. Floats travel as bits.
STATE = (
  "token",  # the one to feed next
  "position",  # where it goes
  "count",  # tokens sampled for this request
  "budget",  # tokens it may sample
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
RECORD = ("token", "active", "count", "done", "behavior", "raw", "step")
# After them, where slots are shaped: ids of the likeliest tokens, then the bits
# of their log-probabilities.
TOKEN, ACTIVE, COUNT, DONE, BEHAVIOR, RAW, STEP = range(len(RECORD))
_NO_STOP = -1  # no token has this id


def empty_state(num_slots: int) -> jax.Array:
  """The state of slots that nobody uses."""
  return jnp.zeros((num_slots, len(STATE)), jnp.int32)


def first_state(token: int, position: int, spec: SamplingSpec) -> np.ndarray:
  """The state of a slot that feeds `token` next, and then samples."""
  seed = spec.seed % 2**64
  return np.array(
    [
      token,
      position,
      0,
      spec.max_tokens,
      int(not spec.grammar),
      float_bits(spec.temperature),
      spec.top_k,
      float_bits(spec.top_p),
      float_bits(spec.min_p),
      *spec.stop_tokens,
      *[_NO_STOP] * (MAX_STOPS - len(spec.stop_tokens)),
      np.uint32(seed >> 32).view(np.int32),
      np.uint32(seed % 2**32).view(np.int32),
    ],
    np.int32,
  )


def float_bits(value: float) -> int:
  """A float32 as the int32 that has its bits."""
  return int(np.float32(value).view(np.int32))


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
  weight_step: jax.Array,
  allowed_PW: jax.Array | None = None,
  shaping: Shaping | None = None,
  *,
  num_steps: int,
) -> tuple[KVCache, jax.Array, jax.Array, Shaping | None]:
  """Up to `num_steps` tokens for each slot; stops when all are done.

  With `allowed_PW`, one token for each slot whose mask has a bit: the others,
  active or not, stay as they are. `num_steps` is 1 then.

  `slot_P` names the slots that are worked on, None means all. `patch_BF`
  replaces the state of slots that begin or were cancelled. Returns cache,
  state, the records [num_steps, P, len(RECORD)] and what shapes the slots, if
  anything does; records have the likeliest tokens then, too.
  """
  state_BF = jnp.where(patched_B[:, None], patch_BF, state_BF)
  slots = cache if slot_P is None else take_slots(cache, slot_P)
  state_PF = _rows(state_BF, slot_P)
  state = dict(zip(STATE, state_PF.T, strict=True))
  shaped = None if shaping is None else shape_of.rows(shaping, slot_P)
  others_P = state["active"]  # what becomes of those that are not called
  if allowed_PW is not None:
    called_P = jnp.any(allowed_PW > 0, axis=-1)
    allowed_PW = jnp.where(called_P[:, None], allowed_PW, ~jnp.uint32(0))
    state["active"] = called_P.astype(jnp.int32)

  def goes_on(carry):
    i, _, state, _, _ = carry
    return (i < num_steps) & jnp.any(state["active"] > 0)

  def step(carry):
    i, slots, state, shaped, record = carry
    slots, state, shaped, row_PR = _decode_step(
      policy, params, slots, state, weight_step, allowed_PW, shaped
    )
    return i + 1, slots, state, shaped, record.at[i].set(row_PR)

  num_fields = len(RECORD)
  if shaping is not None:
    num_fields += 2 * shape_of.num_alternatives(shaping.bias_BV.shape[1])
  shape = (num_steps, state_PF.shape[0], num_fields)
  _, slots, state, shaped, record = jax.lax.while_loop(
    goes_on, step, (0, slots, state, shaped, jnp.zeros(shape, jnp.int32))
  )
  if shaping is not None:
    shaping = shape_of.put_back(shaping, slot_P, shaped.count_BV)
  if allowed_PW is not None:
    state["active"] = jnp.where(called_P, 0, others_P)
  state_PF = jnp.stack([state[name] for name in STATE], axis=-1)
  if slot_P is None:
    return slots, state_PF, record, shaping
  return (
    put_slots(cache, slot_P, slots),
    state_BF.at[slot_P].set(state_PF, mode="drop"),
    record,
    shaping,
  )


def _rows(state_BF: jax.Array, slot_P: jax.Array | None) -> jax.Array:
  if slot_P is None:
    return state_BF
  return state_BF.at[slot_P].get(mode="fill", fill_value=0)


def _decode_step(
  policy, params, slots, state, weight_step, allowed_PW, shaping
):
  """One token for each active slot; the others stay as they are."""
  active_P = state["active"] > 0
  hidden_P1D, slots = policy.extend(
    params,
    slots,
    state["token"][:, None],
    state["position"],
    state["active"],
  )
  position_P = state["position"] + state["active"]
  drawn = sampling.sample(
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
    jnp.logical_or, (drawn.token_B == state[name] for name in STOPS)
  )
  done_P = stopped_P | (count_P >= state["budget"])
  record = {
    "token": drawn.token_B,
    "active": state["active"],
    "count": count_P,
    "done": done_P & active_P,
    "behavior": _bits(drawn.behavior_logprob_B),
    "raw": _bits(drawn.raw_logprob_B),
    "step": jnp.broadcast_to(weight_step, active_P.shape),
  }
  state = state | {
    "token": jnp.where(active_P, drawn.token_B, state["token"]),
    "position": position_P,
    "count": count_P,
    "active": state["active"] * ~done_P,
  }
  row_PR = jnp.stack([record[name].astype(jnp.int32) for name in RECORD], -1)
  if shaping is not None:
    shaping = shape_of.counted(shaping, drawn.token_B, record["active"])
    told = [drawn.top_token_BK, _bits(drawn.top_logprob_BK)]
    row_PR = jnp.concatenate([row_PR, *told], axis=-1)
  return slots, state, shaping, row_PR


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
  """Writes the keys and values of the next tokens of the slots named."""
  slots = take_slots(cache, slot_P)
  _, slots = policy.extend(params, slots, token_PC, start_P, length_P)
  return put_slots(cache, slot_P, slots)


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
  """Some blocks of a pool, in arrays of their own."""
  return take_slots(pool, block_N)


@functools.partial(jax.jit, donate_argnames=("pool",))
def upload(pool: KVCache, block_N: jax.Array, blocks: KVCache) -> KVCache:
  """The pool with these blocks in it."""
  return put_slots(pool, block_N, blocks)


@functools.partial(jax.jit, static_argnames=("cache_length",))
def resize(cache: KVCache, *, cache_length: int) -> KVCache:
  """The cache with room for more tokens per slot, or for fewer."""

  def resized(x_BKSH):
    more = max(cache_length - x_BKSH.shape[2], 0)
    grown = jnp.pad(x_BKSH, ((0, 0), (0, 0), (0, more), (0, 0)))
    return grown[:, :, :cache_length]

  return jax.tree.map(resized, cache)


def _floats(bits: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _bits(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
