"""One answer in pieces, whichever servers they come from.

What has been handed out cannot be taken back. A server that is lost under way
leaves an answer's beginning behind; the next one is asked the same, and as the
seed and the position decide every draw, it begins with the same tokens as long
as it has the same weights. That is checked, and anything else is an error.
"""

import asyncio

from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import Answer


class Differs(GeneratorFault):
  """The rest of an answer was lost with its server."""


class Chunks:
  """From whoever draws to whoever reads, in one event loop."""

  def __init__(self) -> None:
    self._queue: asyncio.Queue[Answer | None] = asyncio.Queue()
    self._known: list[tuple[int, int]] = []  # ids and versions handed out
    self._place = 0  # tokens that the server of now has given

  def begin(self) -> None:
    """Another server gives the answer, from its first token on."""
    self._place = 0

  def put(self, piece: Answer) -> None:
    """Hands out what is new. Raises `Differs` if the rest is not the same."""
    tokens = list(
      zip(piece.sampled.tolist(), piece.version.tolist(), strict=True)
    )
    old = self._known[self._place : self._place + len(tokens)]
    if tokens[: len(old)] != old:
      raise Differs(
        f"{len(self._known)} tokens of an answer had been handed out when its "
        "server was lost, and the server asked next answers in other words or "
        "with other weights, so that the rest would not follow; ask again"
      )
    self._place += len(tokens)
    if len(old) == len(tokens):
      return
    self._known += tokens[len(old) :]
    self._queue.put_nowait(piece.span(len(old)))

  def end(self) -> None:
    """Nothing comes any more."""
    self._queue.put_nowait(None)

  async def get(self) -> Answer | None:
    """Waits for the next piece; None at the end."""
    return await self._queue.get()
