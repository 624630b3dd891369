"""Decode calls of one policy slot, and the state of its slots on the device.

Invariants:

- A slot without a grammar samples several tokens per call. A slot with one
  samples a single token, in a separate call, and only once the host has read
  the token before: the mask of the next token depends on it.
- Changes by the host, such as a slot that starts or was cancelled, wait in a
  patch that the next call applies.
- A grammar that raises fails its own request and no other.
- With `engine.draft_tokens`, every call keeps the sequences on the device up to
  date, and drafts are computed in calls without grammars and shaped slots.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from agentrl_jax.errors import GrammarFault
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import DraftPlan, EngineConfig, Request
from agentrl_jax.rollout.engine import drafts as drafting
from agentrl_jax.rollout.engine import programs, sampling
from agentrl_jax.rollout.engine.cache.kv_cache import KVCacheManager
from agentrl_jax.rollout.engine.cache.slot_table import FREE, SlotTable, padded
from agentrl_jax.rollout.engine.drafts import Drafts
from agentrl_jax.rollout.engine.placement import only_device
from agentrl_jax.rollout.engine.sampling import Shaping

Params = Any  # a pytree of arrays


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
  """The weights of one publication."""

  params: Params
  version: int  # number of optimizer updates behind them
  publication: int  # unique, also among publications of the same version


@dataclasses.dataclass(frozen=True, eq=False)
class DecodeCall:
  """The tokens of one call, which may still be on their way to the host."""

  policy_slot: int
  record: jax.Array  # int32 [N, P, R], in the order of sampling
  slot: np.ndarray  # [P]; entries past the last slot are padding
  assignment: np.ndarray  # [P], of the request that each row belongs to
  num_tokens: int  # most tokens of a row
  is_constrained: bool  # by grammars; must be read before the next step
  # Draft tokens computed in each step, int32 [num_steps, P]; None: no drafts.
  drafted: jax.Array | None = None

  def copy_to_host_async(self) -> None:
    """Starts the copies that `to_host` waits for."""
    for array in (self.record, self.drafted):
      if array is not None:
        array.copy_to_host_async()

  def to_host(self) -> "DecodeCall":
    """Waits for the tokens; returns the call with arrays of the host."""
    drafted = None if self.drafted is None else np.asarray(self.drafted)
    return dataclasses.replace(
      self, record=np.asarray(self.record), drafted=drafted
    )


class Decoder:
  """Owns the state, which is donated to each call of the decode program."""

  def __init__(
    self,
    policy_slot: int,
    policy: Policy,
    config: EngineConfig,
    cache: KVCacheManager,
    cancel: Callable[[Request], None],
  ):
    self._policy_slot, self._policy, self._config = policy_slot, policy, config
    self._cache = cache
    self._num_slots = num_slots = config.slots[policy_slot]
    self.masks = GrammarMasks(num_slots, cancel)
    place = only_device(policy.mesh)
    self.shaping = SlotShaping(num_slots, policy.config.vocab_size, place)
    self._state = jax.device_put(programs.empty_state(num_slots), place)
    self._drafts = (
      SlotDrafts(num_slots, config, place) if config.draft_tokens else None
    )
    self._patch = np.zeros((num_slots, len(programs.STATE)), np.int32)
    self._is_patched = np.zeros(num_slots, bool)

  def start(self, slot: int, request: Request) -> None:
    """Lets a slot decode: it computes its last token next."""
    self._patch[slot] = _first_state(request)
    self._is_patched[slot] = True
    self.masks.start(slot, request)
    self.shaping.start(slot, request)
    if self._drafts is not None:
      self._drafts.start(slot, request)

  def reset(self) -> None:
    """Restores the initial state; no slot may have a request."""
    if self._drafts is not None:
      self._drafts.reset()

  def free(self, slot: int) -> None:
    """Stops a slot whose request is over."""
    self._patch[slot] = 0
    self._is_patched[slot] = True
    self.masks.free(slot)
    self.shaping.free(slot)

  def check(self, table: SlotTable) -> None:
    """Raises `AssertionError` if a free slot has state of a request."""
    self.masks.check(table.is_decoding)
    self.shaping.check(table.is_decoding)

  def decode(self, table: SlotTable, published: Published) -> list[DecodeCall]:
    """Launches calls for all slots that can decode."""
    slots = table.decodable()
    groups = (
      (slots[self.masks.has_mask[slots]], True),
      (slots[~self.masks.is_constrained[slots]], False),
    )
    return [
      self._launch(table, published, group, is_constrained=is_constrained)
      for group, is_constrained in groups
      if group.size
    ]

  def _launch(
    self,
    table: SlotTable,
    published: Published,
    slots: np.ndarray,
    *,
    is_constrained: bool,
  ) -> DecodeCall:
    """Launches one call."""
    num_steps = 1 if is_constrained else self._config.steps_per_sync
    sizes = self._config.slot_sizes(self._num_slots)
    slot_P = padded(slots, sizes, self._num_slots)
    allowed_PW = self.masks.take(slots, slot_P) if is_constrained else None
    shaping = self.shaping.arrays_for(slots)
    plan = None
    if not is_constrained and shaping is None:
      plan = self._config.draft_plan(len(slot_P))
    record, drafted = self._run(
      published, slot_P, allowed_PW, shaping, plan=plan, num_steps=num_steps
    )
    self._is_patched[:] = False
    num_tokens = num_steps * (1 + plan.num_tokens if plan else 1)
    table.launch(slots, num_tokens)
    return DecodeCall(
      self._policy_slot,
      record,
      slot_P,
      np.append(table.assignment, FREE)[slot_P],
      num_tokens,
      is_constrained,
      drafted,
    )

  def _run(
    self,
    published: Published,
    slot_P: np.ndarray,
    allowed_PW: np.ndarray | None,
    shaping: Shaping | None,
    *,
    plan: DraftPlan | None,
    num_steps: int,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Runs the program; returns its records, and the drafts it computed."""
    before = (self._policy, published.params, self._cache.arrays, self._state)
    after = (
      self._patch.copy(),
      self._is_patched.copy(),
      slot_P,
      self._cache.table_of(slot_P),
      np.int32(published.version),
      allowed_PW,
      shaping,
    )
    drafted = None
    if self._drafts is None:
      self._cache.arrays, self._state, record, shaping = programs.decode(
        *before, *after, num_steps=num_steps
      )
    else:
      (
        self._cache.arrays,
        self._state,
        self._drafts.arrays,
        record,
        drafted,
        shaping,
      ) = programs.decode_drafted(
        *before, self._drafts.begun(), *after, plan=plan, num_steps=num_steps
      )
    if shaping is not None:
      self.shaping.arrays = shaping
    return record, drafted


class SlotDrafts:
  """The sequences on the device that drafts are looked up in."""

  def __init__(
    self, num_slots: int, config: EngineConfig, place: Sharding | None
  ):
    self._num_slots, self._config, self._place = num_slots, config, place
    self._starting: dict[int, Request] = {}  # by slot
    self.arrays: Drafts  # donated to each program that uses them
    self.reset()

  def reset(self) -> None:
    """Forgets all sequences, and how their drafts did."""
    self._starting.clear()
    empty = drafting.empty_drafts(self._num_slots, self._config.context)
    self.arrays = jax.device_put(empty, self._place)

  def start(self, slot: int, request: Request) -> None:
    """Writes the prompt of a slot before the next call."""
    self._starting[slot] = request

  def begun(self) -> Drafts:
    """Returns the arrays with the prompts of all slots that have started."""
    if not self._starting:
      return self.arrays
    sizes = self._config.slot_sizes(self._num_slots)
    slot_P = padded(list(self._starting), sizes, self._num_slots)
    token_PL = np.zeros((len(slot_P), self._config.context), np.int32)
    length_P, group_P = np.zeros((2, len(slot_P)), np.int32)
    for row, (slot, request) in enumerate(self._starting.items()):
      length_P[row] = len(request.tokens)
      token_PL[row, : length_P[row]] = request.tokens
      group_P[row] = _group_of(slot, request)
    self._starting.clear()
    self.arrays = drafting.begin(
      self.arrays, slot_P, token_PL, length_P, group_P
    )
    return self.arrays


def _group_of(slot: int, request: Request) -> int:
  """Returns the number of a request's group; one of the slot's if unknown."""
  return request.sampling.conversation % 2**31 or -1 - slot


def _first_state(request: Request) -> np.ndarray:
  """Returns the fields of `programs.STATE` for a slot that starts to decode."""
  spec, seed = request.sampling, request.sampling.seed % 2**64
  num_unused = len(programs.STOPS) - len(spec.stop_tokens)
  return np.array(
    [
      request.tokens[-1],
      request.prefill_length,
      request.num_sampled,
      spec.max_tokens,
      not spec.grammar,
      np.float32(spec.temperature).view(np.int32),
      spec.top_k,
      np.float32(spec.top_p).view(np.int32),
      np.float32(spec.min_p).view(np.int32),
      *spec.stop_tokens,
      *[programs.NO_STOP] * num_unused,
      np.uint32(seed >> 32).view(np.int32),
      np.uint32(seed % 2**32).view(np.int32),
    ],
    np.int32,
  )


class GrammarMasks:
  """Masks of the next token for slots with a grammar. Indexed by slot."""

  def __init__(self, num_slots: int, cancel: Callable[[Request], None]):
    """`cancel` is called for a request whose grammar raises."""
    self._cancel = cancel
    self.is_constrained = np.zeros(num_slots, bool)  # by a grammar
    # uint32 [W]; there once the token before was read.
    self._mask: dict[int, np.ndarray] = {}

  @property
  def has_mask(self) -> np.ndarray:
    """Slots whose next mask is known."""
    has_mask = np.zeros(len(self.is_constrained), bool)
    has_mask[list(self._mask)] = True
    return has_mask

  def start(self, slot: int, request: Request) -> None:
    """Starts a slot, with a grammar or without."""
    if request.grammar_state is not None:
      self.is_constrained[slot] = True
      self.advance(slot, request)

  def advance(
    self, slot: int, request: Request, token: int | None = None
  ) -> None:
    """Advances the grammar of a slot that goes on by its sampled token."""
    state = request.grammar_state
    assert state is not None, f"slot {slot} has no grammar"
    try:
      if token is not None:
        state.take(token)
      self._mask[slot] = state.allowed()
    except Exception as error:  # noqa: BLE001 - the request fails with it
      request.fault = GrammarFault(f"an answer stopped: {error}")
      request.fault.__cause__ = error
      self._cancel(request)

  def take(self, slots: np.ndarray, slot_P: np.ndarray) -> np.ndarray:
    """Removes and returns the masks of slots, as uint32 [P, W].

    `slot_P` are the computed rows; those of other slots are 0.
    """
    mask_NW = np.stack([self._mask.pop(slot) for slot in slots.tolist()])
    allowed_PW = np.zeros((len(slot_P), mask_NW.shape[1]), np.uint32)
    allowed_PW[np.isin(slot_P, slots)] = mask_NW
    return allowed_PW

  def free(self, slot: int) -> None:
    """Drops the grammar of a slot."""
    self.is_constrained[slot] = False
    self._mask.pop(slot, None)

  def check(self, is_decoding: np.ndarray) -> None:
    """Raises `AssertionError` if a slot that does not decode has a grammar."""
    constrained, has_mask = self.is_constrained, self.has_mask
    assert not (constrained & ~is_decoding).any(), (constrained, is_decoding)
    assert not (has_mask & ~constrained).any(), (has_mask, constrained)


class SlotShaping:
  """Penalties, biases and alternatives of one policy slot's slots.

  The arrays on the device are allocated for the first request that needs them
  and dropped after the last, so other requests run programs without them.
  """

  def __init__(self, num_slots: int, vocab_size: int, place: Sharding | None):
    self._num_slots, self._vocab_size = num_slots, vocab_size
    self._place = place
    self.is_shaped = np.zeros(num_slots, bool)
    self.arrays: Shaping | None = None  # donated to each program that uses them
    # Alternatives of a slot's tokens: ids, then bits of log-probabilities,
    # int32 [max_tokens, 2 K].
    self._alternatives: dict[int, np.ndarray] = {}

  def start(self, slot: int, request: Request) -> None:
    """Starts a slot, and overwrites what its last request left."""
    spec = request.sampling
    self.is_shaped[slot] = spec.is_shaped
    self._alternatives.pop(slot, None)
    if spec.is_shaped and self.arrays is None:
      empty = sampling.empty_shaping(self._num_slots, self._vocab_size)
      self.arrays = jax.device_put(empty, self._place)
    if self.arrays is not None:
      self.arrays = sampling.set_shaping(self.arrays, slot, spec)
      if spec.is_shaped and request.sampled is not None:
        self.arrays = sampling.set_counts(
          self.arrays, slot, request.sampled.token_N
        )
    if spec.num_top:
      width = 2 * sampling.num_alternatives(self._vocab_size)
      rows = np.zeros((spec.max_tokens, width), np.int32)
      if (
        request.sampled is not None and request.sampled.alternatives is not None
      ):
        rows[: request.num_sampled] = request.sampled.alternatives
      self._alternatives[slot] = rows

  def rows(self, slot: int, number: int) -> np.ndarray | None:
    """Returns alternatives of a slot's first tokens; None if it has none."""
    if slot not in self._alternatives:
      return None
    return self._alternatives[slot][:number].copy()

  def arrays_for(self, slots: np.ndarray) -> Shaping | None:
    """Returns the arrays if any of these slots needs them."""
    return self.arrays if self.is_shaped[slots].any() else None

  def add_alternatives(
    self, slot_N: np.ndarray, count_N: np.ndarray, row_NF: np.ndarray
  ) -> None:
    """Keeps the alternatives [2 K] of each slot's token number `count`."""
    rows = zip(slot_N.tolist(), count_N.tolist(), row_NF, strict=True)
    for slot, count, row in rows:
      if slot in self._alternatives:
        self._alternatives[slot][count - 1] = row

  def alternatives(
    self, slot: int, request: Request, begin: int, end: int
  ) -> dict[str, np.ndarray]:
    """Returns alternatives of a span of tokens, as fields of a `Completion`."""
    if slot not in self._alternatives:
      return {}
    rows = self._alternatives[slot][begin:end]
    size = rows.shape[1] // 2
    number = min(request.sampling.num_top, size)
    return {
      "top_token": rows[:, :number].copy(),
      "top_logprob": rows[:, size : size + number].copy().view(np.float32),
    }

  def free(self, slot: int) -> None:
    """Drops what a slot's request asked for."""
    self.is_shaped[slot] = False
    self._alternatives.pop(slot, None)
    if not self.is_shaped.any():
      self.arrays = None

  def check(self, is_decoding: np.ndarray) -> None:
    """Raises `AssertionError` if a slot that does not decode is shaped."""
    is_shaped, with_top = self.is_shaped, set(self._alternatives)
    assert not (is_shaped & ~is_decoding).any(), (is_shaped, is_decoding)
    assert with_top <= set(np.flatnonzero(is_shaped)), with_top
    assert (self.arrays is None) == (not is_shaped.any()), is_shaped
