"""Which slots follow a grammar, and what it allows each of them next.

What is allowed depends on every token before, so such a slot takes one token
per call, and none before the last one was read. Plain numpy on the host. What a
grammar raises fails its own request and nobody else's.
"""

from collections.abc import Callable

import numpy as np

from agentrl_jax.data.grammar.grammars import GrammarState
from agentrl_jax.errors import GrammarFault
from agentrl_jax.rollout.engine.request import Request


class GrammarMasks:
  """The grammars of one policy slot's slots. Arrays are indexed by slot."""

  def __init__(self, num_slots: int, give_up: Callable[[Request], None]):
    """`give_up` cancels a request whose grammar has come to an end."""
    self._give_up = give_up
    self.bound = np.zeros(num_slots, bool)  # to a grammar
    # What a slot may take next, uint32 [W]; there once its last token was read.
    self._mask: dict[int, np.ndarray] = {}

  @property
  def ready(self) -> np.ndarray:
    """Slots whose next mask is known."""
    ready = np.zeros(len(self.bound), bool)
    ready[list(self._mask)] = True
    return ready

  def begin(self, slot: int, request: Request) -> None:
    """A slot begins to decode, with a grammar or without."""
    if request.course is not None:
      self.bound[slot] = True
      self._look(slot, request, request.course)

  def take(self, slot: int, request: Request, token: int) -> None:
    """A slot has sampled a token, and is to go on."""
    if request.course is not None:
      self._look(slot, request, request.course, token)

  def launch(self, slot: np.ndarray, slot_P: np.ndarray) -> np.ndarray:
    """What slots that are ready may take now, uint32 [P, W].

    `slot_P` are the rows that are computed; rows of other slots are 0.
    """
    mask_LW = np.stack([self._mask.pop(int(one)) for one in slot])
    allowed_PW = np.zeros((len(slot_P), mask_LW.shape[1]), np.uint32)
    allowed_PW[np.isin(slot_P, slot)] = mask_LW
    return allowed_PW

  def leave(self, slot: int) -> None:
    """A slot is free, or somebody else's."""
    self.bound[slot] = False
    self._mask.pop(slot, None)

  def check(self, is_decoding: np.ndarray) -> None:
    """Raises `AssertionError` if a slot that does not decode has a grammar."""
    assert not (self.bound & ~is_decoding).any(), (self.bound, is_decoding)
    assert not (self.ready & ~self.bound).any(), (self.ready, self.bound)

  def _look(
    self,
    slot: int,
    request: Request,
    course: GrammarState,
    token: int | None = None,
  ) -> None:
    try:
      if token is not None:
        course.take(token)
      self._mask[slot] = course.allowed()
    except Exception as error:  # noqa: BLE001 - the request fails with it
      request.broke = GrammarFault(f"an answer stopped: {error}")
      request.broke.__cause__ = error
      self._give_up(request)
