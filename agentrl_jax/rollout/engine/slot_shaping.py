"""Which slots are shaped, what shapes them on the device, and what it told.

The arrays come with the first request that needs them and go with the last, so
an engine whose requests have neither penalties, biases nor alternatives holds
nothing here and runs the programs without them.
"""

import numpy as np

from agentrl_jax.rollout.engine import shaping
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.shaping import Shaping


class SlotShaping:
  """The shaping of one policy slot's slots."""

  def __init__(self, num_slots: int, vocab_size: int):
    self._num_slots, self._vocab_size = num_slots, vocab_size
    self.shaped = np.zeros(num_slots, bool)  # by what their requests ask for
    self.arrays: Shaping | None = None  # donated to each program that has them
    # Alternatives of a slot's tokens, ids and log-probabilities' bits side by
    # side, int32 [max_tokens, 2 K].
    self._told: dict[int, np.ndarray] = {}

  def begin(self, slot: int, request: Request) -> None:
    """A slot begins to decode; what was in it before leaves nothing behind."""
    spec = request.spec
    self.shaped[slot] = spec.is_shaped
    self._told.pop(slot, None)
    if spec.is_shaped and self.arrays is None:
      self.arrays = shaping.empty(self._num_slots, self._vocab_size)
    if self.arrays is not None:
      self.arrays = shaping.begun(self.arrays, slot, spec)
    if spec.num_top:
      width = 2 * shaping.num_alternatives(self._vocab_size)
      self._told[slot] = np.zeros((spec.max_tokens, width), np.int32)

  def of(self, slot: np.ndarray) -> Shaping | None:
    """The arrays, if any of these slots needs them."""
    return self.arrays if self.shaped[slot].any() else None

  def take_in(
    self, slot: np.ndarray, count: np.ndarray, told: np.ndarray
  ) -> None:
    """Keeps the alternatives of tokens number `count`, by slot [N, 2 K]."""
    for one, number, row in zip(
      slot.tolist(), count.tolist(), told, strict=True
    ):
      if one in self._told:
        self._told[one][number - 1] = row

  def told(
    self, slot: int, request: Request, begin: int, end: int
  ) -> dict[str, np.ndarray]:
    """Alternatives of a span of a slot's tokens, as fields of an `Answer`."""
    if slot not in self._told:
      return {}
    found = self._told[slot][begin:end]
    size = found.shape[1] // 2
    number = min(request.spec.num_top, size)
    return {
      "top_token": found[:, :number].copy(),
      "top_logprob": found[:, size : size + number].copy().view(np.float32),
    }

  def leave(self, slot: int) -> None:
    """A slot's request is over."""
    self.shaped[slot] = False
    self._told.pop(slot, None)
    if not self.shaped.any():
      self.arrays = None

  def check(self, is_decoding: np.ndarray) -> None:
    """Raises `AssertionError` if what a request asked for outlives it."""
    assert not (self.shaped & ~is_decoding).any(), (self.shaped, is_decoding)
    assert set(self._told) <= set(np.flatnonzero(self.shaped)), self._told
    assert (self.arrays is None) == (not self.shaped.any()), self.shaped
