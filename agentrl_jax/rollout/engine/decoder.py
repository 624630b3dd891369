"""The calls that decode a slot's lanes, and their state on the device.

Lanes without a grammar take a few tokens per call. Lanes with one take a single
token, in a call of their own, and none before the host has read the last: what
they may take next depends on it. What the host changes, a lane that begins or
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
  """The tokens of one slot's call, which may still be on their way."""

  slot: int
  record: jax.Array  # int32 [num_steps, P, len(RECORD)]
  lane: np.ndarray  # [P]; entries past the last lane are padding
  serial: np.ndarray  # [P], of the request that each row belongs to
  is_bound: bool  # to grammars: its lanes cannot go on before it was read


class Decoder:
  """Owns the state, which is donated to each call of the decode program."""

  def __init__(
    self,
    slot: int,
    policy: Policy,
    config: EngineConfig,
    cache: KVCacheManager,
    give_up: Callable[[Request], None],
  ):
    self._slot, self._policy, self._config = slot, policy, config
    self._cache = cache
    self._num_lanes = num_lanes = config.lanes[slot]
    self._courses = GrammarMasks(num_lanes, give_up)
    self.shaping = SlotShaping(num_lanes, policy.config.vocab_size)
    self._state = programs.empty_state(num_lanes)
    self._patch = np.zeros((num_lanes, len(programs.STATE)), np.int32)
    self._patched = np.zeros(num_lanes, bool)

  def begin(self, lane: int, request: Request) -> None:
    """The lane feeds its prompt's last token next, and then samples."""
    self._patch[lane] = programs.first_state(
      int(request.prompt[-1]), request.num_prefilled, request.spec
    )
    self._patched[lane] = True
    self._courses.begin(lane, request)
    self.shaping.begin(lane, request)

  def take(self, lane: int, request: Request, token: int) -> None:
    """A lane has sampled a token under its grammar, and goes on."""
    self._courses.take(lane, request, token)

  def leave(self, lane: int) -> None:
    """The lane's request is over: it decodes no further."""
    self._patch[lane] = 0
    self._patched[lane] = True
    self._courses.leave(lane)
    self.shaping.leave(lane)

  @property
  def is_bound(self) -> np.ndarray:
    """Whether each lane follows a grammar."""
    return self._courses.bound

  def check(self, book: SlotTable) -> None:
    """Raises `AssertionError` if anything of a request is left behind."""
    self._courses.check(book.decoding)
    self.shaping.check(book.decoding)

  def decode(self, book: SlotTable, weights: WeightVersions) -> list[Part]:
    """Tokens for every lane that can, each under its own weights."""
    lane = book.filled()
    ready, free = self._courses.ready[lane], ~self._courses.bound[lane]
    at_hand = weights.publications
    publication = np.where(
      np.isin(book.publication[lane], at_hand),
      book.publication[lane],
      at_hand[-1],
    )
    parts = []
    for one in at_hand:
      published, here = weights.of(one), publication == one
      if (here & ready).any():
        parts.append(self._bound(book, published, lane[here & ready]))
      if (here & free).any():
        alone = bool(here[free].all())
        parts.append(self._free(book, published, lane[here & free], alone))
    return parts

  def _bound(
    self, book: SlotTable, published: Published, lane: np.ndarray
  ) -> Part:
    """One token for each of these lanes, as their grammars allow.

    Lanes without a mask are left as they are, so none has to be taken out.
    """
    size = self._config.decode_size(self._num_lanes, len(lane), 1)
    whole = size == self._num_lanes
    lane_P = (
      np.arange(size) if whole else padded(lane, (size,), self._num_lanes)
    )
    allowed_PW = self._courses.launch(lane, lane_P)
    record = self._call(
      published, lane, None if whole else lane_P, 1, allowed_PW
    )
    book.go_on(lane, 1)
    serial = np.append(book.serial, NOBODY)[lane_P]
    return Part(self._slot, record, lane_P, serial, is_bound=True)

  def _free(
    self, book: SlotTable, published: Published, lane: np.ndarray, alone: bool
  ) -> Part:
    """A few tokens for each of these lanes; `alone`: no other is active."""
    num_steps = self._config.steps_per_sync
    size = self._config.decode_size(self._num_lanes, len(lane), num_steps)
    whole = size == self._num_lanes and alone
    lane_P = (
      np.arange(size) if whole else padded(lane, (size,), self._num_lanes)
    )
    record = self._call(published, lane, None if whole else lane_P, num_steps)
    book.go_on(lane, num_steps)
    serial = np.append(book.serial, NOBODY)[lane_P]
    return Part(self._slot, record, lane_P, serial, is_bound=False)

  def _call(
    self,
    published: Published,
    lane: np.ndarray,
    lane_P: np.ndarray | None,
    num_steps: int,
    allowed_PW: np.ndarray | None = None,
  ) -> jax.Array:
    shaping = self.shaping.of(lane)
    self._cache.arrays, self._state, record, shaping = programs.decode(
      self._policy,
      published.params,
      self._cache.arrays,
      self._state,
      self._patch.copy(),
      self._patched.copy(),
      lane_P,
      np.int32(published.step),
      allowed_PW,
      shaping,
      num_steps=num_steps,
    )
    if shaping is not None:
      self.shaping.arrays = shaping
    self._patched[:] = False
    return record
