"""Drafts of the next tokens, looked up where the last ones occurred before.

No draft model: the engine keeps the tokens of each slot on the device, and an
index of their n-grams. The tokens that followed the latest occurrence of a
slot's last n-gram, in its own sequence or in one of the same group, are its
draft. vLLM calls this n-gram speculative decoding, transformers prompt lookup.

- A draft is a guess. The caller compares it with the tokens that it samples,
  so whatever is stored here changes speed and nothing else.
- Rows of finished requests stay until their slot starts again, so that the
  attempts of a group can draft from each other.
- The work per step does not depend on the length of sequences, and the host
  has no part in it but to start a slot.

Axes: B slots of the engine, P slots taken out, L positions of a sequence, K
tokens of a draft, C tokens emitted in a step, O orders of n-grams, H entries of
the index, W last tokens that are compared, M lengths of a match.
"""

import functools

import chex
import jax
import jax.numpy as jnp

ORDERS = (4, 2, 1)  # tokens of the n-grams that are looked up, longest first
_LONGEST_MATCH = 8  # longer ones are not told apart
_LARGEST_INDEX = 2**22
_NOWHERE = -1
_MIXERS = (0x9E3779B1, 0x85EBCA6B)  # odd; of murmurhash and its kin
# The latest checks weigh most: a rate forgets half of them after 34.
_RATE_DECAY = 0.98
_FIRST_RATE = 0.5
_SLOT_DECAY = 0.9
_SLOT_PRIOR = 2.0  # checks that a slot's own record starts with
_HIGHEST_CHANCE = 0.98


@chex.dataclass(frozen=True)
class Drafts:
  """Sequences of a policy slot's slots, and how their drafts have done."""

  token_BL: jax.Array  # int32
  length_B: jax.Array  # int32, tokens of each row that are known
  group_B: jax.Array  # int32; rows draft from rows of their own group
  # int32: where an n-gram was followed last, as slot * L + position.
  index_OH: jax.Array
  # Share of right draft tokens by the number of tokens that matched before.
  rate_M: jax.Array
  # Right draft tokens of a slot, and those that `rate_M` made one expect.
  hits_B: jax.Array
  expected_B: jax.Array


@chex.dataclass(frozen=True)
class Proposal:
  """A draft per slot."""

  token_PK: jax.Array  # int32
  length_P: jax.Array  # int32; 0 is no draft
  match_P: jax.Array  # int32, tokens that matched before the draft
  chance_PK: jax.Array  # that this token and all before it are right


def empty_drafts(num_slots: int, length: int) -> Drafts:
  """Allocates the drafts of slots without requests."""
  entries = 2 * num_slots * length
  size = min(1 << (entries - 1).bit_length(), _LARGEST_INDEX)
  return Drafts(
    token_BL=jnp.zeros((num_slots, length), jnp.int32),
    length_B=jnp.zeros(num_slots, jnp.int32),
    group_B=jnp.zeros(num_slots, jnp.int32),
    index_OH=jnp.full((len(ORDERS), size), _NOWHERE, jnp.int32),
    rate_M=jnp.full(_LONGEST_MATCH + 1, _FIRST_RATE, jnp.float32),
    hits_B=jnp.full(num_slots, _SLOT_PRIOR, jnp.float32),
    expected_B=jnp.full(num_slots, _SLOT_PRIOR, jnp.float32),
  )


@functools.partial(jax.jit, donate_argnames=("drafts",))
def begin(
  drafts: Drafts,
  slot_P: jax.Array,
  token_PL: jax.Array,
  length_P: jax.Array,
  group_P: jax.Array,
) -> Drafts:
  """Writes the prompts of slots that start; slots outside are dropped."""
  num_entries = drafts.index_OH.shape[1]
  position_L = jnp.arange(token_PL.shape[1])
  value_PL = slot_P[:, None] * token_PL.shape[1] + position_L
  is_slot_P1 = (slot_P < len(drafts.length_B))[:, None]
  index_OH = drafts.index_OH
  for number, order in enumerate(ORDERS):
    # Entry j is about the n-gram before position j.
    gram_PLN = jnp.stack(
      [jnp.roll(token_PL, 1 + n, axis=1) for n in range(order)], axis=-1
    )
    is_whole_PL = (position_L >= order) & (position_L < length_P[:, None])
    key_PL = _keys(group_P[:, None], gram_PLN, num_entries)
    key_PL = jnp.where(is_whole_PL & is_slot_P1, key_PL, num_entries)
    index_OH = index_OH.at[number, key_PL].set(value_PL, mode="drop")
  fresh = jnp.full(slot_P.shape, _SLOT_PRIOR, jnp.float32)
  return drafts.replace(
    token_BL=drafts.token_BL.at[slot_P].set(token_PL, mode="drop"),
    length_B=drafts.length_B.at[slot_P].set(length_P, mode="drop"),
    group_B=drafts.group_B.at[slot_P].set(group_P, mode="drop"),
    index_OH=index_OH,
    hits_B=drafts.hits_B.at[slot_P].set(fresh, mode="drop"),
    expected_B=drafts.expected_B.at[slot_P].set(fresh, mode="drop"),
  )


def propose(
  drafts: Drafts,
  slot_P: jax.Array,
  position_P: jax.Array,
  most_P: jax.Array,
  num_tokens: int,
) -> Proposal:
  """Looks up a draft of `num_tokens` for each slot.

  Args:
    drafts: not changed.
    slot_P: slots, of which those outside get no draft.
    position_P: of the last token of each slot.
    most_P: tokens that a slot can use; 0 asks for no draft.
    num_tokens: of the longest draft.
  """
  row_P, start_P, match_P = _look_up(drafts, slot_P, position_P)
  offset_K = jnp.arange(num_tokens)
  known_P1 = (_of_slots(drafts.length_B, row_P) - start_P)[:, None]
  is_own_P1 = (row_P == slot_P)[:, None]
  # A slot that has caught up with its own end goes on in circles.
  offset_PK = jnp.where(
    is_own_P1, offset_K % jnp.maximum(known_P1, 1), offset_K
  )
  is_known_PK = (offset_PK < known_P1) & (match_P > 0)[:, None]
  is_known_PK &= offset_K < most_P[:, None]
  length_P = jnp.sum(jnp.cumprod(is_known_PK, axis=1), axis=1)
  at_PK = start_P[:, None] + offset_PK
  chance_PK = jnp.cumprod(_chances(drafts, slot_P, match_P, num_tokens), axis=1)
  return Proposal(
    token_PK=drafts.token_BL.at[row_P[:, None], at_PK].get(
      mode="fill", fill_value=0
    ),
    length_P=length_P,
    match_P=match_P,
    chance_PK=jnp.where(offset_K < length_P[:, None], chance_PK, 0),
  )


def append(
  drafts: Drafts,
  slot_P: jax.Array,
  position_P: jax.Array,
  token_PC: jax.Array,
  count_P: jax.Array,
) -> Drafts:
  """Adds the `count` tokens that follow position `position` of each slot."""
  num_tokens, num_entries = token_PC.shape[1], drafts.index_OH.shape[1]
  num_rows, length = drafts.token_BL.shape
  offset_C = jnp.arange(num_tokens)
  at_PC = position_P[:, None] + 1 + offset_C
  is_new_PC = (offset_C < count_P[:, None]) & (slot_P < num_rows)[:, None]
  column_PC = jnp.where(is_new_PC, at_PC, length)
  tail_PW = _tails(drafts, slot_P, position_P, max(ORDERS))
  # Newest last: the n-gram before token c ends at column c + W - 1.
  run_PN = jnp.concatenate([tail_PW[:, ::-1], token_PC], axis=1)
  index_OH = drafts.index_OH
  for number, order in enumerate(ORDERS):
    last = tail_PW.shape[1] - 1
    gram_PCN = jnp.stack(
      [run_PN[:, last - n :][:, :num_tokens] for n in range(order)], axis=-1
    )
    is_whole_PC = is_new_PC & (at_PC >= order)
    group_P1 = _of_slots(drafts.group_B, slot_P)[:, None]
    key_PC = _keys(group_P1, gram_PCN, num_entries)
    key_PC = jnp.where(is_whole_PC, key_PC, num_entries)
    index_OH = index_OH.at[number, key_PC].set(
      slot_P[:, None] * length + at_PC, mode="drop"
    )
  # A slot without a new token may be free, and keeps its row.
  grown_P = jnp.where(count_P > 0, slot_P, num_rows)
  return drafts.replace(
    token_BL=drafts.token_BL.at[slot_P[:, None], column_PC].set(
      token_PC, mode="drop"
    ),
    length_B=drafts.length_B.at[grown_P].set(
      position_P + 1 + count_P, mode="drop"
    ),
    index_OH=index_OH,
  )


def learn(
  drafts: Drafts,
  slot_P: jax.Array,
  proposal: Proposal,
  token_PC: jax.Array,
  count_P: jax.Array,
) -> Drafts:
  """Updates rates by the tokens that were sampled.

  A token of a draft is checked if all before it were right and a token was
  sampled at its place. That holds for the first of each draft, so a slot whose
  drafts are not computed is judged as well, and drafts again once they pay.
  """
  num_tokens = proposal.token_PK.shape[1]
  offset_K = jnp.arange(num_tokens)
  limit_P = jnp.minimum(proposal.length_P, count_P)
  is_right_PK = proposal.token_PK == token_PC[:, :num_tokens]
  is_right_PK &= offset_K < limit_P[:, None]
  before_PK = jnp.pad(
    jnp.cumprod(is_right_PK, axis=1)[:, :-1],
    ((0, 0), (1, 0)),
    constant_values=1,
  )
  is_checked_PK = (before_PK > 0) & (offset_K < limit_P[:, None])
  match_PK = _matches(proposal.match_P, num_tokens)
  expected_PK = jnp.where(is_checked_PK, drafts.rate_M[match_PK], 0)
  is_hit_PK = is_right_PK & is_checked_PK
  num_checked_P = jnp.sum(is_checked_PK, axis=1)

  def updated(sum_B: jax.Array, added_PK: jax.Array) -> jax.Array:
    sum_P = _of_slots(sum_B, slot_P) - _SLOT_PRIOR
    sum_P = sum_P * _SLOT_DECAY**num_checked_P + jnp.sum(added_PK, axis=1)
    return sum_B.at[slot_P].set(_SLOT_PRIOR + sum_P, mode="drop")

  return drafts.replace(
    rate_M=_updated_rates(drafts.rate_M, match_PK, is_hit_PK, is_checked_PK),
    hits_B=updated(drafts.hits_B, is_hit_PK),
    expected_B=updated(drafts.expected_B, expected_PK),
  )


def _updated_rates(
  rate_M: jax.Array,
  match_PK: jax.Array,
  is_hit_PK: jax.Array,
  is_checked_PK: jax.Array,
) -> jax.Array:
  is_match_PKM = match_PK[:, :, None] == jnp.arange(len(rate_M))
  hits_M, checks_M = (
    jnp.sum(x_PK[:, :, None] & is_match_PKM, axis=(0, 1))
    for x_PK in (is_hit_PK, is_checked_PK)
  )
  kept_M = _RATE_DECAY**checks_M
  return kept_M * rate_M + (1 - kept_M) * hits_M / jnp.maximum(checks_M, 1)


def choose_slots(
  proposal: Proposal, sizes: tuple[int, ...], num_active: jax.Array, cost: float
) -> tuple[jax.Array, jax.Array]:
  """Chooses the slots whose drafts are computed in this step.

  A step that computes the drafts of Q slots is taken to last 1 + cost Q K / P,
  in units of a step without drafts, and to emit one token per active slot, plus
  the draft tokens that are likely right. The Q of the most tokens per time is
  chosen, and the Q slots that gain most.

  Args:
    proposal: of all slots that the call computes.
    sizes: what Q may be besides 0, increasing.
    num_active: slots that emit tokens.
    cost: of one more token per slot.

  Returns:
    The index of Q in (0, *sizes), and all rows P, those that gain most first.
  """
  num_rows, num_tokens = proposal.token_PK.shape
  gain_P = jnp.sum(proposal.chance_PK, axis=1)
  order_P = jnp.argsort(-gain_P)
  total_P = jnp.cumsum(gain_P[order_P])
  size_Q = jnp.array((0, *sizes))
  gain_Q = jnp.where(size_Q > 0, total_P[jnp.maximum(size_Q - 1, 0)], 0)
  time_Q = 1 + cost * num_tokens / num_rows * size_Q
  choice = jnp.argmax((num_active + gain_Q) / time_Q).astype(jnp.int32)
  return choice, order_P


def _look_up(
  drafts: Drafts, slot_P: jax.Array, position_P: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns row and position after the best match, and the tokens matched."""
  num_entries, length = drafts.index_OH.shape[1], drafts.token_BL.shape[1]
  tail_PW = _tails(drafts, slot_P, position_P, _LONGEST_MATCH)
  group_P = _of_slots(drafts.group_B, slot_P)
  key_PO = jnp.stack(
    [_keys(group_P, tail_PW[:, :order], num_entries) for order in ORDERS], -1
  )
  place_PO = drafts.index_OH[jnp.arange(len(ORDERS)), key_PO]
  row_PO, start_PO = place_PO // length, place_PO % length
  before_POW = start_PO[:, :, None] - 1 - jnp.arange(_LONGEST_MATCH)
  found_POW = drafts.token_BL.at[row_PO[:, :, None], before_POW].get(
    mode="fill", fill_value=_NOWHERE
  )
  is_same_POW = (found_POW == tail_PW[:, None]) & (before_POW >= 0)
  is_same_POW &= tail_PW[:, None] >= 0
  match_PO = jnp.sum(jnp.cumprod(is_same_POW, axis=-1), axis=-1)
  is_valid_PO = (
    (place_PO >= 0)
    & (start_PO < _of_slots(drafts.length_B, row_PO))
    & (_of_slots(drafts.group_B, row_PO) == group_P[:, None])
  )
  match_PO = jnp.where(is_valid_PO, match_PO, 0)
  best_P1 = jnp.argmax(match_PO, axis=1)[:, None]

  def best(x_PO: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_PO, best_P1, axis=1)[:, 0]

  return best(row_PO), best(start_PO), best(match_PO)


def _tails(
  drafts: Drafts, slot_P: jax.Array, position_P: jax.Array, size: int
) -> jax.Array:
  """Returns the last tokens of each slot, the newest first; -1 before any."""
  at_PW = position_P[:, None] - jnp.arange(size)
  token_PW = drafts.token_BL.at[slot_P[:, None], at_PW].get(
    mode="fill", fill_value=_NOWHERE
  )
  return jnp.where(at_PW >= 0, token_PW, _NOWHERE)


def _keys(group: jax.Array, gram: jax.Array, num_entries: int) -> jax.Array:
  """Hashes n-grams, the last axis of `gram`, to entries of the index.

  Of two n-grams with one entry the later one stays.
  """
  key = group.astype(jnp.uint32) * jnp.uint32(_MIXERS[1])
  for n in range(gram.shape[-1]):
    key = (key ^ gram[..., n].astype(jnp.uint32)) * jnp.uint32(_MIXERS[0])
    key ^= key >> 15
  key = key * jnp.uint32(_MIXERS[1])
  return ((key ^ (key >> 13)) & jnp.uint32(num_entries - 1)).astype(jnp.int32)


def _chances(
  drafts: Drafts, slot_P: jax.Array, match_P: jax.Array, num_tokens: int
) -> jax.Array:
  """Returns the chance of each token of a draft, if those before are right."""
  rate_PK = drafts.rate_M[_matches(match_P, num_tokens)]
  expected_P = _of_slots(drafts.expected_B, slot_P)
  factor_P = _of_slots(drafts.hits_B, slot_P) / jnp.maximum(expected_P, 1)
  return jnp.clip(rate_PK * factor_P[:, None], 0, _HIGHEST_CHANCE)


def _matches(match_P: jax.Array, num_tokens: int) -> jax.Array:
  """Tokens that match before each token of a draft: those before it do."""
  match_PK = match_P[:, None] + jnp.arange(num_tokens)
  return jnp.minimum(match_PK, _LONGEST_MATCH)


def _of_slots(x_B: jax.Array, slot: jax.Array) -> jax.Array:
  return x_B.at[slot].get(mode="fill", fill_value=0)
