"""Compiles the grammars of requests off the event loop.

However many requests have one grammar, it waits and is compiled once; it is
compiled to its end even if all of them have hung up, for it may come again.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.errors import ServerFull

MAX_WAITING = 64  # grammars of clients that may be anyone's


class GrammarCompiler:
  """Compiles grammars before the engine needs them."""

  def __init__(
    self,
    grammars: Callable[[], Grammars | None],
    max_waiting: int | None = MAX_WAITING,
  ):
    """`max_waiting` grammars may wait, or any number."""
    self._grammars, self._max_waiting = grammars, max_waiting
    self._waiting: dict[str, asyncio.Future[None]] = {}  # by grammar
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "grammars")

  async def prepare(self, grammar: str) -> None:
    """Returns once the engine can use the grammar without compiling it.

    Raises `ConfigError` for text that is no grammar, and `ServerFull` if too
    many wait.
    """
    grammars = self._grammars()
    if grammars is None or grammars.has(grammar):
      return
    compiled = self._waiting.get(grammar)
    if compiled is None:
      if len(self._waiting) == self._max_waiting:
        raise ServerFull(
          f"{self._max_waiting} grammars wait to be compiled, and no more may "
          "wait; try again later"
        )
      run = asyncio.get_running_loop().run_in_executor
      compiled = run(self._thread, grammars.check, grammar)
      self._waiting[grammar] = compiled
      compiled.add_done_callback(lambda _: self._waiting.pop(grammar))
    await asyncio.shield(compiled)
