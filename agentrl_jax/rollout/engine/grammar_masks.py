"""Which lanes follow a grammar, and what it allows each of them next.

What is allowed depends on every token before, so such a lane takes one token
per call, and none before the last one was read. Plain numpy on the host. What a
grammar raises fails its own request and nobody else's.
"""

from collections.abc import Callable

import numpy as np

from agentrl_jax.data.grammar import GrammarState
from agentrl_jax.errors import GrammarFault
from agentrl_jax.rollout.engine.request import Request


class GrammarMasks:
  """The grammars of one version slot's lanes. Arrays are indexed by lane."""

  def __init__(self, num_lanes: int, give_up: Callable[[Request], None]):
    """`give_up` cancels a request whose grammar has come to an end."""
    self._give_up = give_up
    self.bound = np.zeros(num_lanes, bool)  # to a grammar
    # What a lane may take next, uint32 [W]; there once its last token was read.
    self._mask: dict[int, np.ndarray] = {}

  @property
  def ready(self) -> np.ndarray:
    """Lanes whose next mask is known."""
    ready = np.zeros(len(self.bound), bool)
    ready[list(self._mask)] = True
    return ready

  def begin(self, lane: int, request: Request) -> None:
    """A lane begins to decode, with a grammar or without."""
    if request.course is not None:
      self.bound[lane] = True
      self._look(lane, request, request.course)

  def take(self, lane: int, request: Request, token: int) -> None:
    """A lane has sampled a token, and is to go on."""
    if request.course is not None:
      self._look(lane, request, request.course, token)

  def launch(self, lane: np.ndarray, lane_P: np.ndarray) -> np.ndarray:
    """What lanes that are ready may take now, uint32 [P, W].

    `lane_P` are the rows that are computed; rows of other lanes are 0.
    """
    mask_LW = np.stack([self._mask.pop(int(one)) for one in lane])
    allowed_PW = np.zeros((len(lane_P), mask_LW.shape[1]), np.uint32)
    allowed_PW[np.isin(lane_P, lane)] = mask_LW
    return allowed_PW

  def leave(self, lane: int) -> None:
    """A lane is free, or somebody else's."""
    self.bound[lane] = False
    self._mask.pop(lane, None)

  def check(self, is_decoding: np.ndarray) -> None:
    """Raises `AssertionError` if a lane that does not decode has a grammar."""
    assert not (self.bound & ~is_decoding).any(), (self.bound, is_decoding)
    assert not (self.ready & ~self.bound).any(), (self.ready, self.bound)

  def _look(
    self,
    lane: int,
    request: Request,
    course: GrammarState,
    token: int | None = None,
  ) -> None:
    try:
      if token is not None:
        course.take(token)
      self._mask[lane] = course.allowed()
    except Exception as error:  # noqa: BLE001 - the request fails with it
      request.broke = GrammarFault(f"an answer stopped: {error}")
      request.broke.__cause__ = error
      self._give_up(request)
