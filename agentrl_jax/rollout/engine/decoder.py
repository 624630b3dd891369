"""Decode calls of one policy slot, and the state of its slots on the device.

Invariants:

- A slot without a grammar samples several tokens per call. A slot with one
  samples a single token, in a separate call, and only once the host has read
  the token before: the mask of the next token depends on it.
- Changes by the host, such as a slot that starts or was cancelled, wait in a
  patch that the next call applies.
- A grammar that raises fails its own request and no other.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from agentrl_jax.errors import GrammarFault
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine import programs, sampling
from agentrl_jax.rollout.engine.kv_cache import (
  FREE,
  KVCacheManager,
  SlotTable,
  padded,
)
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.sampling import Shaping
from agentrl_jax.rollout.engine.weights import Published, WeightVersions
from agentrl_jax.rollout.settings import EngineConfig


@dataclasses.dataclass(frozen=True, eq=False)
class DecodeCall:
  """The tokens of one call, which may still be on their way to the host."""

  policy_slot: int
  record: jax.Array  # int32 [num_steps, P, R]
  slot: np.ndarray  # [P]; entries past the last slot are padding
  serial: np.ndarray  # [P], of the request that each row belongs to
  is_constrained: bool  # by grammars; must be read before the next step


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
    self.shaping = SlotShaping(num_slots, policy.config.vocab_size)
    self._state = programs.empty_state(num_slots)
    self._patch = np.zeros((num_slots, len(programs.STATE)), np.int32)
    self._is_patched = np.zeros(num_slots, bool)

  def start(self, slot: int, request: Request) -> None:
    """Lets a slot decode: it computes its prompt's last token next."""
    self._patch[slot] = _first_state(request)
    self._is_patched[slot] = True
    self.masks.start(slot, request)
    self.shaping.start(slot, request)

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

  def decode(
    self, table: SlotTable, weights: WeightVersions
  ) -> list[DecodeCall]:
    """Launches calls for all slots that can decode, each with its weights."""
    slots = table.decodable()
    has_mask = self.masks.has_mask[slots]
    is_free = ~self.masks.is_constrained[slots]
    newest = weights.publications[-1]
    publication = table.publication[slots]
    publication = np.where(
      np.isin(publication, weights.publications), publication, newest
    )
    calls = []
    for number in weights.publications:
      published, selected = weights.get(number), publication == number
      if (selected & has_mask).any():
        # Slots without a mask stay as they are, wherever the call runs.
        constrained = slots[selected & has_mask]
        calls.append(
          self._launch(
            table, published, constrained, in_place=True, is_constrained=True
          )
        )
      if (selected & is_free).any():
        free, alone = slots[selected & is_free], bool(selected[is_free].all())
        calls.append(
          self._launch(
            table, published, free, in_place=alone, is_constrained=False
          )
        )
    return calls

  def _launch(
    self,
    table: SlotTable,
    published: Published,
    slots: np.ndarray,
    *,
    in_place: bool,
    is_constrained: bool,
  ) -> DecodeCall:
    """Launches one call; `in_place` allows it to compute all slots."""
    num_steps = 1 if is_constrained else self._config.steps_per_sync
    size = self._config.decode_size(self._num_slots, len(slots), num_steps)
    in_place = in_place and size == self._num_slots
    slot_P = (
      np.arange(size) if in_place else padded(slots, (size,), self._num_slots)
    )
    allowed_PW = self.masks.take(slots, slot_P) if is_constrained else None
    shaping = self.shaping.arrays_for(slots)
    self._cache.arrays, self._state, record, shaping = programs.decode(
      self._policy,
      published.params,
      self._cache.arrays,
      self._state,
      self._patch.copy(),
      self._is_patched.copy(),
      None if in_place else slot_P,
      np.int32(published.step),
      allowed_PW,
      shaping,
      num_steps=num_steps,
    )
    if shaping is not None:
      self.shaping.arrays = shaping
    self._is_patched[:] = False
    table.launch(slots, num_steps)
    serial = np.append(table.serial, FREE)[slot_P]
    return DecodeCall(self._policy_slot, record, slot_P, serial, is_constrained)


def _first_state(request: Request) -> np.ndarray:
  """Returns the fields of `programs.STATE` for a slot that starts to decode."""
  spec, seed = request.sampling, request.sampling.seed % 2**64
  num_unused = len(programs.STOPS) - len(spec.stop_tokens)
  return np.array(
    [
      request.prompt[-1],
      request.prefill_length,
      0,
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

  def __init__(self, num_slots: int, vocab_size: int):
    self._num_slots, self._vocab_size = num_slots, vocab_size
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
      self.arrays = sampling.empty_shaping(self._num_slots, self._vocab_size)
    if self.arrays is not None:
      self.arrays = sampling.set_shaping(self.arrays, slot, spec)
    if spec.num_top:
      width = 2 * sampling.num_alternatives(self._vocab_size)
      self._alternatives[slot] = np.zeros((spec.max_tokens, width), np.int32)

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
