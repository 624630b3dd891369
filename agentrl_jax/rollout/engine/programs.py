"""The compiled programs of the engine: prefill, decode, copies of the cache.

Each is compiled once per shape and called with the params of any version. A
call names its slots and has their page table: the cache is updated in place.
Cache and slot state are donated: the caller owns them and continues with what
is returned.

Axes: B slots, P slots of a call, C tokens of a chunk or of a step,
K tokens of a draft, Q rows whose drafts are computed, N rows of a pass, F
fields of a slot's state, R fields of a record, W words of a grammar's mask or
pages of a slot.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.model.attention.cached import Chunk
from agentrl_jax.model.cache import KVCache
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import MAX_STOPS, DraftPlan
from agentrl_jax.rollout.engine import drafts as drafting
from agentrl_jax.rollout.engine import sampling
from agentrl_jax.rollout.engine.cache.arrays import experts_of, map_cache
from agentrl_jax.rollout.engine.drafts import Drafts
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
  slot_P: jax.Array,
  page_PW: jax.Array,
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
    slot_P: the slots to compute; those that do not exist are padding.
    page_PW: page table of the slots, with pages for all tokens of the call.
    version: stamped on each record.
    allowed_PW: masks of grammars; then `num_steps` is 1, and slots with an
      empty mask, active or not, stay as they are.
    shaping: donated; None if no slot is shaped.
    num_steps: decode steps.

  Returns:
    The cache, the state, the records [num_steps, P, R], and `shaping`.
  """
  state_BF = jnp.where(patched_B[:, None], patch_BF, state_BF)
  called = _Called(policy, params, version, slot_P, page_PW, allowed_PW)
  cache, state_BF, (shaping, _), (record, _) = _decode(
    called, cache, state_BF, shaping, None, None, num_steps
  )
  return cache, state_BF, record, shaping


@functools.partial(
  jax.jit,
  static_argnames=("policy", "plan", "num_steps"),
  donate_argnames=("cache", "state_BF", "shaping", "drafts"),
)
def decode_drafted(
  policy: Policy,
  params: Any,
  cache: KVCache,
  state_BF: jax.Array,
  drafts: Drafts,
  patch_BF: jax.Array,
  patched_B: jax.Array,
  slot_P: jax.Array,
  page_PW: jax.Array,
  version: jax.Array,
  allowed_PW: jax.Array | None = None,
  shaping: Shaping | None = None,
  *,
  plan: DraftPlan | None,
  num_steps: int,
) -> tuple[
  KVCache, jax.Array, Drafts, jax.Array, jax.Array | None, Shaping | None
]:
  """Does as `decode`, with several tokens per step where a draft was right.

  Each token is drawn from the policy's distribution with the key of its own
  position, so the draft decides only how many are drawn at once.

  Args:
    policy: static, as are `plan` and `num_steps`.
    params: as in `decode`, like all that is not listed here.
    cache: as above.
    state_BF: as above.
    drafts: donated; the tokens sampled are appended.
    patch_BF: as above.
    patched_B: as above.
    slot_P: as above.
    page_PW: as above.
    version: as above.
    allowed_PW: as above; needs a `plan` of None.
    shaping: as above; needs a `plan` of None.
    plan: None computes no drafts.
    num_steps: decode steps.

  Returns:
    The cache, the state, the drafts, the records [num_steps C, P, R] with C = 1
    + K tokens per step, of which the first of a step come first; the draft
    tokens that were computed, int32 [num_steps, P], or None; and `shaping`.
  """
  state_BF = jnp.where(patched_B[:, None], patch_BF, state_BF)
  called = _Called(policy, params, version, slot_P, page_PW, allowed_PW)
  cache, state_BF, (shaping, drafts), (record, drafted) = _decode(
    called, cache, state_BF, shaping, drafts, plan, num_steps
  )
  if plan is not None:
    record = record.reshape(-1, *record.shape[2:])
  return cache, state_BF, drafts, record, drafted, shaping


@dataclasses.dataclass(frozen=True, eq=False)
class _Called:
  """Arguments of a decode program that its steps do not change."""

  policy: Policy
  params: Any
  version: jax.Array
  slot_P: jax.Array
  page_PW: jax.Array
  allowed_PW: jax.Array | None
  state_P: jax.Array | None = None  # of layers that keep one


def _decode(called, cache, state_BF, shaping, drafts, plan, num_steps):
  """Runs decode steps; see `decode` and `decode_drafted`."""
  slot_P, allowed_PW = called.slot_P, called.allowed_PW
  state_PF = state_BF.at[slot_P].get(mode="fill", fill_value=0)
  state = dict(zip(STATE, state_PF.T, strict=True))
  shaped = None if shaping is None else sampling.take_shaping(shaping, slot_P)
  if called.policy.config.has_states:
    # Slots have the first states, copies the others; padding has none.
    none = jnp.iinfo(jnp.int32).max
    state_P = jnp.where(slot_P < len(state_BF), slot_P, none)
    called = dataclasses.replace(called, state_P=state_P)
  active_P = state["active"]
  if allowed_PW is not None:
    called_P = jnp.any(allowed_PW > 0, axis=-1)
    allowed_PW = jnp.where(called_P[:, None], allowed_PW, ~jnp.uint32(0))
    called = dataclasses.replace(called, allowed_PW=allowed_PW)
    state["active"] = called_P.astype(jnp.int32)

  def is_unfinished(carry):
    i, _, state, *_ = carry
    return (i < num_steps) & jnp.any(state["active"] > 0)

  def step(carry):
    i, cache, state, shaped, drafts, records = carry
    cache, state, shaped, drafts, rows = _step(
      called, cache, state, shaped, drafts, plan
    )
    records = jax.tree.map(lambda x, row: x.at[i].set(row), records, rows)
    return i + 1, cache, state, shaped, drafts, records

  records = _empty_records(state_PF.shape[0], shaping, plan, num_steps)
  _, cache, state, shaped, drafts, records = jax.lax.while_loop(
    is_unfinished, step, (0, cache, state, shaped, drafts, records)
  )
  if shaping is not None:
    shaping = sampling.put_counts(shaping, slot_P, shaped.count_BV)
  if allowed_PW is not None:
    state["active"] = jnp.where(called_P, 0, active_P)
  state_PF = jnp.stack([state[name] for name in STATE], axis=-1)
  state_BF = state_BF.at[slot_P].set(state_PF, mode="drop")
  return cache, state_BF, (shaping, drafts), records


def _empty_records(num_rows, shaping, plan, num_steps):
  """Returns records of all steps, and the draft tokens that each computed."""
  num_fields = len(RECORD)
  if shaping is not None:
    num_fields += 2 * sampling.num_alternatives(shaping.bias_BV.shape[1])
  if plan is None:
    return jnp.zeros((num_steps, num_rows, num_fields), jnp.int32), None
  shape = (num_steps, 1 + plan.num_tokens, num_rows, num_fields)
  return (
    jnp.zeros(shape, jnp.int32),
    jnp.zeros((num_steps, num_rows), jnp.int32),
  )


def _step(called, cache, state, shaped, drafts, plan):
  """Runs one decode step, and keeps the drafts up to date if there are any."""
  if plan is not None:
    cache, state, drafts, rows = _drafted_step(
      called, cache, state, drafts, plan
    )
    return cache, state, shaped, drafts, rows
  before = state
  cache, state, shaped, row_PR = _decode_step(called, cache, state, shaped)
  if drafts is not None:
    drafts = drafting.append(
      drafts,
      called.slot_P,
      before["position"],
      row_PR[:, TOKEN, None],
      before["active"],
    )
  return cache, state, shaped, drafts, (row_PR, None)


def _decode_step(called, cache, state, shaping):
  """Samples one token for each active slot; the others stay as they are."""
  policy, params = called.policy, called.params
  active_P = state["active"] > 0
  hidden_P1D, cache = policy.extend(
    params,
    cache,
    state["token"][:, None],
    state["position"],
    state["active"],
    called.page_PW,
    called.state_P,
  )
  position_P = state["position"] + state["active"]
  sample = _sample(
    policy.unembed(params, hidden_P1D[:, 0]),
    state,
    position_P,
    allowed_BW=called.allowed_PW,
    shaping=shaping,
  )
  count_P = state["count"] + state["active"]
  done_P = _is_last(sample.token_B, count_P, state)
  record = {
    "token": sample.token_B,
    "active": state["active"],
    "count": count_P,
    "done": done_P & active_P,
    "behavior": _bits(sample.behavior_logprob_B),
    "raw": _bits(sample.raw_logprob_B),
    "version": jnp.broadcast_to(called.version, active_P.shape),
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


def _sample(logits_BV, state, position_B, **options):
  """Draws the tokens at these positions by the settings of their slots."""
  return sampling.sample(
    logits_BV,
    temperature_B=_floats(state["temperature"]),
    top_k_B=state["top_k"],
    top_p_B=_floats(state["top_p"]),
    min_p_B=_floats(state["min_p"]),
    key_B=sampling.slot_keys(state["seed_high"], state["seed_low"], position_B),
    **options,
  )


def _is_last(token, count, state):
  """Tests if a token ends its answer: a stop token, or the budget's last."""
  stops = (
    token == state[name].reshape(-1, *[1] * (token.ndim - 1)) for name in STOPS
  )
  budget = state["budget"].reshape(-1, *[1] * (token.ndim - 1))
  return functools.reduce(jnp.logical_or, stops) | (count >= budget)


def _drafted_step(called, cache, state, drafts, plan):
  """Samples a token for each active slot, and more where its draft was right.

  The drafts of some slots are computed with their last tokens in one pass, and
  a token is sampled at each of these positions. A slot keeps its samples up to
  the first that differs from the draft, or that ends the answer. Keys and
  values of a wrong draft lie past the slot's position, so nobody attends to
  them, and later steps overwrite them.
  """
  slot_P = called.slot_P
  active_P, position_P = state["active"] > 0, state["position"]
  capacity = called.page_PW.shape[1] * cache[0][0].shape[2]
  room_P = jnp.minimum(state["budget"] - state["count"], capacity - position_P)
  proposal = drafting.propose(
    drafts,
    slot_P,
    position_P,
    jnp.where(active_P, room_P - 1, 0),
    plan.num_tokens,
  )
  vocab_size = called.policy.config.vocab_size
  proposal = proposal.replace(
    token_PK=jnp.clip(proposal.token_PK, 0, vocab_size - 1)
  )
  choice, order_P = drafting.choose_slots(
    proposal, plan.sizes, jnp.sum(active_P), plan.cost
  )

  cache, (token_PC, behavior_PC, raw_PC), drafted_P = _sample_chosen(
    called, cache, state, proposal, choice, order_P, plan
  )
  offset_C = jnp.arange(1 + plan.num_tokens)
  count_PC = state["count"][:, None] + 1 + offset_C
  last_PC = _is_last(token_PC, count_PC, state)
  is_right_PK = (token_PC[:, :-1] == proposal.token_PK) & ~last_PC[:, :-1]
  is_right_PK &= offset_C[:-1] < drafted_P[:, None]
  kept_PK = jnp.cumprod(is_right_PK, axis=1) > 0
  kept_PC = active_P[:, None] & jnp.pad(
    kept_PK, ((0, 0), (1, 0)), constant_values=True
  )
  num_kept_P = jnp.sum(kept_PC, axis=1)
  record = {
    "token": token_PC,
    "active": kept_PC,
    "count": count_PC,
    "done": last_PC & kept_PC,
    "behavior": _bits(behavior_PC),
    "raw": _bits(raw_PC),
    "version": jnp.broadcast_to(called.version, token_PC.shape),
  }
  newest_P1 = jnp.maximum(num_kept_P - 1, 0)[:, None]
  token_P = jnp.take_along_axis(token_PC, newest_P1, axis=1)[:, 0]
  drafts = drafting.learn(drafts, slot_P, proposal, token_PC, num_kept_P)
  drafts = drafting.append(drafts, slot_P, position_P, token_PC, num_kept_P)
  state = state | {
    "token": jnp.where(active_P, token_P, state["token"]),
    "position": position_P + num_kept_P,
    "count": state["count"] + num_kept_P,
    "active": state["active"] * ~jnp.any(record["done"], axis=1),
  }
  row_PCR = jnp.stack([record[name].astype(jnp.int32) for name in RECORD], -1)
  return cache, state, drafts, (jnp.swapaxes(row_PCR, 0, 1), drafted_P)


def _sample_chosen(called, cache, state, proposal, choice, order_P, plan):
  """Runs `_sample_drafts` with the chosen one of the plan's sizes.

  Each size is a loop that runs once or not at all: XLA updates the cache of a
  loop in place, and copies that of a branch.
  """
  num_rows, num_tokens = proposal.token_PK.shape
  shape = (num_rows, 1 + num_tokens)
  carry = (
    choice,
    cache,
    (jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(shape)),
    jnp.zeros(num_rows, jnp.int32),
  )
  for number, size in enumerate((0, *plan.sizes)):

    def computed(carry, size=size):
      return jnp.int32(-1), *_sample_drafts(
        called,
        carry[1],
        state,
        proposal,
        None if size == num_rows else order_P[:size],
      )

    carry = jax.lax.while_loop(
      lambda carry, number=number: carry[0] == number, computed, carry
    )
  return carry[1:]


def _sample_drafts(called, cache, state, proposal, chosen_Q):
  """Computes the slots' last tokens and the drafts of some of them.

  `chosen_Q` are the rows of these slots, None: all.

  Returns the cache, the samples [P, C] and their two log-probabilities, and the
  draft tokens computed per slot. Samples past a computed draft mean nothing.
  """
  num_rows, num_tokens = proposal.token_PK.shape
  row_Q = jnp.arange(num_rows) if chosen_Q is None else chosen_Q
  size, policy, page_PW = len(row_Q), called.policy, called.page_PW
  chunks = [
    Chunk(state["token"][:, None], state["position"], state["active"], page_PW),
    Chunk(
      proposal.token_PK[row_Q],
      state["position"][row_Q] + 1,
      proposal.length_P[row_Q],
      page_PW[row_Q],
    ),
  ]
  hidden, cache = policy.extend_together(
    called.params, cache, chunks if size else chunks[:1]
  )
  hidden_ND = jnp.concatenate([x.reshape(-1, x.shape[-1]) for x in hidden])
  row_N = jnp.concatenate([jnp.arange(num_rows), jnp.repeat(row_Q, num_tokens)])
  offset_N = jnp.concatenate(
    [jnp.zeros(num_rows, jnp.int32), jnp.tile(jnp.arange(num_tokens), size) + 1]
  )
  of_rows = {name: x[row_N] for name, x in state.items()} if size else state
  active_N = of_rows["active"]
  sample = _sample(
    policy.unembed(called.params, hidden_ND),
    of_rows,
    of_rows["position"] + active_N + offset_N,
  )

  def by_slot(x_N: jax.Array) -> jax.Array:
    first_P1 = x_N[:num_rows, None]
    x_PC = jnp.pad(first_P1, ((0, 0), (0, num_tokens)))
    return x_PC.at[row_Q, 1:].set(x_N[num_rows:].reshape(size, num_tokens))

  samples = tuple(
    map(
      by_slot, (sample.token_B, sample.behavior_logprob_B, sample.raw_logprob_B)
    )
  )
  drafted_P = jnp.zeros(num_rows, jnp.int32)
  return cache, samples, drafted_P.at[row_Q].set(proposal.length_P[row_Q])


@functools.partial(
  jax.jit, static_argnames=("policy",), donate_argnames=("cache",)
)
def prefill(
  policy: Policy,
  params: Any,
  cache: KVCache,
  token_PC: jax.Array,
  start_P: jax.Array,
  length_P: jax.Array,
  page_PW: jax.Array,
  state_P: jax.Array | None = None,
) -> KVCache:
  """Writes what the next tokens of some slots leave in the cache."""
  _, cache = policy.extend(
    params, cache, token_PC, start_P, length_P, page_PW, state_P
  )
  return cache


read_experts = jax.jit(experts_of)


@functools.partial(jax.jit, donate_argnames=("cache",))
def copy(cache: KVCache, source_P: jax.Array, target_P: jax.Array) -> KVCache:
  """Copies pages over others; reads all before it writes any."""
  return map_cache(cache, page=functools.partial(_copied, source_P, target_P))


@functools.partial(jax.jit, donate_argnames=("cache",))
def copy_states(
  cache: KVCache, source_P: jax.Array, target_P: jax.Array
) -> KVCache:
  """Copies states over others; reads all before it writes any."""
  return map_cache(cache, state=functools.partial(_copied, source_P, target_P))


def _copied(source_P: jax.Array, target_P: jax.Array, x: jax.Array):
  rows = x.at[source_P].get(mode="fill", fill_value=0)
  return x.at[target_P].set(rows, mode="drop")


def _floats(bits: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _bits(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
