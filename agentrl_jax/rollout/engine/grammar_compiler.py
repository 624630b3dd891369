"""Checks and compiles grammars of requests off the event loop, in a CPU budget.

Invariants:

- A grammar is compiled in this process only after it was compiled within the
  budget in a process that can be stopped (`data.grammar.process`).
- A slow grammar does not hold up fast ones: each gets a short try first, and
  only those that fail it queue for the long try.
- A grammar that was refused is refused at once when it comes again.
- However many requests have one grammar, it waits and is compiled once.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from agentrl_jax.data.chat.call_grammar import VALIDATE
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.grammar.process import GrammarProcess, GrammarTooLarge
from agentrl_jax.errors import ServerFull

COMPILE_S = 1.0  # CPU seconds, the default budget
_SHORT_S = 0.1  # CPU seconds of the first try
MAX_WAITING = 64  # grammars of clients that may be anyone's
_MAX_REFUSED = 4096  # grammars whose refusal is remembered


class _Tries:
  """Two processes, for short and for long tries. Thread-safe."""

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

  def check(self, level: int, grammar: str) -> str | None:
    """Checks a grammar in the short try (level 0) or the long one (level 1).

    Returns the reason why it cannot be used, "" if it can, and None if the
    short try ran out of time. Raises `GrammarTooLarge` if the long one did.
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
      if len(self._refused) > _MAX_REFUSED:
        self._refused.popitem(last=False)
      raise


class GrammarValidator:
  """Checks grammars while `data.chat.call_grammar` writes them."""

  def __init__(self, compile_timeout_s: float = COMPILE_S):
    self._tries = _Tries(_validators, compile_timeout_s, compiled=False)

  @contextlib.contextmanager
  def validating(self) -> Iterator[None]:
    """Checks all grammars that this thread writes in the context."""
    token = VALIDATE.set(self._validate)
    try:
      yield
    finally:
      VALIDATE.reset(token)

  def _validate(self, grammar: str) -> str:
    reason = self._tries.check(0, grammar)
    return str(self._tries.check(1, grammar) if reason is None else reason)


@dataclasses.dataclass
class _Waiting:
  """A grammar that waits to be compiled, and its requests."""

  # Is held by the request that compiles it.
  turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
  num_requests: int = 0


class GrammarCompiler:
  """Compiles grammars before the engine needs them."""

  def __init__(
    self,
    grammars: Callable[[], Grammars | None],
    compile_timeout_s: float = COMPILE_S,
    max_waiting: int | None = MAX_WAITING,
  ):
    """`max_waiting` grammars may wait, or any number."""
    self._grammars, self._max_waiting = grammars, max_waiting
    self._tries = _Tries(self._processes, compile_timeout_s, compiled=True)
    self._started: list[GrammarProcess] = []
    self._waiting: dict[str, _Waiting] = {}  # by grammar
    # One thread for each kind of try, and one that compiles in this process.
    self._threads = tuple(
      concurrent.futures.ThreadPoolExecutor(1, f"grammars-{name}")
      for name in ("short", "long", "engine")
    )

  async def prepare(self, grammar: str) -> None:
    """Returns once the engine can use the grammar without compiling it.

    Raises `ConfigError` for text that is no grammar, `GrammarTooLarge` for one
    beyond the budget, `ServerFull` if too many wait.
    """
    grammars = self._grammars()
    if grammars is None or grammars.has(grammar):
      return
    run = asyncio.get_running_loop().run_in_executor
    async with self._turn(grammar):
      if grammars.has(grammar):
        return
      reason = await run(self._threads[0], self._tries.check, 0, grammar)
      if reason is None:
        await run(self._threads[1], self._tries.check, 1, grammar)
      await run(self._threads[2], grammars.check, grammar)

  @contextlib.asynccontextmanager
  async def _turn(self, grammar: str) -> AsyncIterator[None]:
    """Waits until no other request compiles the grammar."""
    if grammar not in self._waiting:
      if len(self._waiting) == self._max_waiting:
        raise ServerFull(
          f"{self._max_waiting} grammars wait to be compiled, and no more may "
          "wait; try again later"
        )
      self._waiting[grammar] = _Waiting()
    waiting = self._waiting[grammar]
    waiting.num_requests += 1
    try:
      async with waiting.turn:
        yield
    finally:
      waiting.num_requests -= 1
      if not waiting.num_requests:
        del self._waiting[grammar]

  def _processes(self) -> Sequence[GrammarProcess]:
    grammars = self._grammars()
    if not self._started and grammars is not None:
      started = [grammars.process(), grammars.process()]
      self._started = self._started or started  # another thread may be faster
    return self._started


@functools.cache
def _validators() -> Sequence[GrammarProcess]:
  """Returns the processes of all validators, which need no tokenizer."""
  return GrammarProcess(), GrammarProcess()
