"""Grammars of requests, checked and compiled beside the event loop, in budget.

Invariants:

- nothing is compiled here that was not compiled within the budget in a process
  that can be stopped (`data.grammar.process`);
- a grammar that needs long makes room for those that do not: each has a short
  try first, and only what fails that stands in the queue for the long one;
- a grammar that was refused is refused at once when it comes again.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence

from agentrl_jax.data.grammar.call_grammar import VALIDATE
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.grammar.process import GrammarProcess, GrammarTooLarge
from agentrl_jax.errors import ServerFull

COMPILE_S = 1.0  # CPU seconds, where nobody says otherwise
_SHORT_S = 0.1  # CPU seconds of the first try
_MAX_WAITING = 64  # grammars at once
_REMEMBERED = 4096  # refusals


class _Tries:
  """Two processes, one for short tries and one for long ones. Of any thread."""

  def __init__(
    self,
    processes: Callable[[], Sequence[GrammarProcess]],
    compile_timeout_s: float,
    *,
    compiled: bool,
  ):
    self._processes, self._compiled = processes, compiled
    self._budgets = (min(_SHORT_S, compile_timeout_s), compile_timeout_s)
    self._refused: collections.OrderedDict[bytes, str] = (
      collections.OrderedDict()
    )

  def tried(self, level: int, grammar: str) -> str | None:
    """Why it cannot be used, "" if it can; None: the short try was too short.

    Raises `GrammarTooLarge` where the long one was, too.
    """
    key = hashlib.sha256(grammar.encode()).digest()
    if (refusal := self._refused.get(key)) is not None:
      raise GrammarTooLarge(refusal)
    try:
      return self._processes()[level].check(
        grammar, cpu_s=self._budgets[level], compiled=self._compiled
      )
    except GrammarTooLarge as error:
      if level == 0:
        return None
      self._refused[key] = str(error)
      if len(self._refused) > _REMEMBERED:
        self._refused.popitem(last=False)
      raise


class GrammarValidator:
  """Checks the grammars that calls ask for while they are written."""

  def __init__(self, compile_timeout_s: float = COMPILE_S):
    self._tries = _Tries(_validators, compile_timeout_s, compiled=False)

  @contextlib.contextmanager
  def validating(self) -> Iterator[None]:
    """Around what writes grammars in this thread."""
    token = VALIDATE.set(self._validate)
    try:
      yield
    finally:
      VALIDATE.reset(token)

  def _validate(self, grammar: str) -> str:
    found = self._tries.tried(0, grammar)
    return str(self._tries.tried(1, grammar) if found is None else found)


class GrammarCompiler:
  """Prepares grammars for an engine's `Grammars`."""

  def __init__(
    self,
    grammars: Callable[[], Grammars | None],
    compile_timeout_s: float = COMPILE_S,
  ):
    self._grammars = grammars
    self._tries = _Tries(self._processes, compile_timeout_s, compiled=True)
    self._made: list[GrammarProcess] = []
    self._num_waiting = 0
    # One thread for each try, and one that compiles for the engine.
    self._threads = tuple(
      concurrent.futures.ThreadPoolExecutor(1, f"grammars-{name}")
      for name in ("short", "long", "engine")
    )

  async def prepare(self, grammar: str) -> None:
    """Returns once the engine can begin with it at once.

    Raises `ConfigError` for what is no grammar, `GrammarTooLarge` for one
    beyond the budget, `ServerFull` if too many wait.
    """
    grammars = self._grammars()
    if grammars is None or grammars.has(grammar):
      return
    if self._num_waiting >= _MAX_WAITING:
      raise ServerFull(
        f"{self._num_waiting} grammars wait to be compiled, which is all that "
        "may at once; ask again later"
      )
    self._num_waiting += 1
    run = asyncio.get_running_loop().run_in_executor
    try:
      found = await run(self._threads[0], self._tries.tried, 0, grammar)
      if found is None:
        await run(self._threads[1], self._tries.tried, 1, grammar)
      await run(self._threads[2], grammars.check, grammar)
    finally:
      self._num_waiting -= 1

  def _processes(self) -> Sequence[GrammarProcess]:
    grammars = self._grammars()
    if not self._made and grammars is not None:
      made = [grammars.process(), grammars.process()]
      self._made = self._made or made
    return self._made


@functools.cache
def _validators() -> Sequence[GrammarProcess]:
  """Of all validators: what is only read needs no tokenizer."""
  return GrammarProcess(), GrammarProcess()
