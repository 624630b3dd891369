"""The calls that decode a policy slot's slots, and their state on the device.

Slots without a grammar take a few tokens per call. Slots with one take a single
token, in a call of their own, and none before the host has read the last: what
they may take next depends on it. What the host changes, a slot that begins or
one that was cancelled, waits in a patch that the next call applies.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.grammar_masks import GrammarMasks
from agentrl_jax.rollout.engine.kv_cache import KVCacheManager, padded
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.slot_shaping import SlotShaping
from agentrl_jax.rollout.engine.slot_table import NOBODY, SlotTable
from agentrl_jax.rollout.engine.weight_versions import WeightVersions
from agentrl_jax.rollout.engine.weights import Published
from agentrl_jax.rollout.settings import EngineConfig


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """The tokens of one policy slot's call, which may still be on their way."""

  policy_slot: int
  record: jax.Array  # int32 [num_steps, P, len(RECORD)]
  slot: np.ndarray  # [P]; entries past the last slot are padding
  serial: np.ndarray  # [P], of the request that each row belongs to
  is_bound: bool  # to grammars: its slots cannot go on before it was read


class Decoder:
  """Owns the state, which is donated to each call of the decode program."""

  def __init__(
    self,
    policy_slot: int,
    policy: Policy,
    config: EngineConfig,
    cache: KVCacheManager,
    give_up: Callable[[Request], None],
  ):
    self._policy_slot, self._policy, self._config = policy_slot, policy, config
    self._cache = cache
    self._num_slots = num_slots = config.slots[policy_slot]
    self._courses = GrammarMasks(num_slots, give_up)
    self.shaping = SlotShaping(num_slots, policy.config.vocab_size)
    self._state = programs.empty_state(num_slots)
    self._patch = np.zeros((num_slots, len(programs.STATE)), np.int32)
    self._patched = np.zeros(num_slots, bool)

  def begin(self, slot: int, request: Request) -> None:
    """The slot feeds its prompt's last token next, and then samples."""
    self._patch[slot] = programs.first_state(
      int(request.prompt[-1]), request.num_prefilled, request.spec
    )
    self._patched[slot] = True
    self._courses.begin(slot, request)
    self.shaping.begin(slot, request)

  def take(self, slot: int, request: Request, token: int) -> None:
    """A slot has sampled a token under its grammar, and goes on."""
    self._courses.take(slot, request, token)

  def leave(self, slot: int) -> None:
    """The slot's request is over: it decodes no further."""
    self._patch[slot] = 0
    self._patched[slot] = True
    self._courses.leave(slot)
    self.shaping.leave(slot)

  @property
  def is_bound(self) -> np.ndarray:
    """Whether each slot follows a grammar."""
    return self._courses.bound

  def check(self, book: SlotTable) -> None:
    """Raises `AssertionError` if anything of a request is left behind."""
    self._courses.check(book.decoding)
    self.shaping.check(book.decoding)

  def decode(self, book: SlotTable, weights: WeightVersions) -> list[Part]:
    """Tokens for every slot that can, each under its own weights."""
    slot = book.filled()
    ready, free = self._courses.ready[slot], ~self._courses.bound[slot]
    at_hand = weights.publications
    publication = np.where(
      np.isin(book.publication[slot], at_hand),
      book.publication[slot],
      at_hand[-1],
    )
    parts = []
    for one in at_hand:
      published, here = weights.of(one), publication == one
      if (here & ready).any():
        parts.append(self._bound(book, published, slot[here & ready]))
      if (here & free).any():
        alone = bool(here[free].all())
        parts.append(self._free(book, published, slot[here & free], alone))
    return parts

  def _bound(
    self, book: SlotTable, published: Published, slot: np.ndarray
  ) -> Part:
    """One token for each of these slots, as their grammars allow.

    Slots without a mask are left as they are, so none has to be taken out.
    """
    size = self._config.decode_size(self._num_slots, len(slot), 1)
    whole = size == self._num_slots
    slot_P = (
      np.arange(size) if whole else padded(slot, (size,), self._num_slots)
    )
    allowed_PW = self._courses.launch(slot, slot_P)
    record = self._call(
      published, slot, None if whole else slot_P, 1, allowed_PW
    )
    book.go_on(slot, 1)
    serial = np.append(book.serial, NOBODY)[slot_P]
    return Part(self._policy_slot, record, slot_P, serial, is_bound=True)

  def _free(
    self, book: SlotTable, published: Published, slot: np.ndarray, alone: bool
  ) -> Part:
    """A few tokens for each of these slots; `alone`: no other is active."""
    num_steps = self._config.steps_per_sync
    size = self._config.decode_size(self._num_slots, len(slot), num_steps)
    whole = size == self._num_slots and alone
    slot_P = (
      np.arange(size) if whole else padded(slot, (size,), self._num_slots)
    )
    record = self._call(published, slot, None if whole else slot_P, num_steps)
    book.go_on(slot, num_steps)
    serial = np.append(book.serial, NOBODY)[slot_P]
    return Part(self._policy_slot, record, slot_P, serial, is_bound=False)

  def _call(
    self,
    published: Published,
    slot: np.ndarray,
    slot_P: np.ndarray | None,
    num_steps: int,
    allowed_PW: np.ndarray | None = None,
  ) -> jax.Array:
    shaping = self.shaping.of(slot)
    self._cache.arrays, self._state, record, shaping = programs.decode(
      self._policy,
      published.params,
      self._cache.arrays,
      self._state,
      self._patch.copy(),
      self._patched.copy(),
      slot_P,
      np.int32(published.step),
      allowed_PW,
      shaping,
      num_steps=num_steps,
    )
    if shaping is not None:
      self.shaping.arrays = shaping
    self._patched[:] = False
    return record
