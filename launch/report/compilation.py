"""Which programs jax is compiling, for whoever measures or shows time.

jax says when tracing, lowering and compiling of a program begin and end, in the
thread that does it. Within the context of a `CompilationWatch` it is listened
to; what is compiled before and after is not known.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax

_EVENTS = (
  "/jax/core/compile/jaxpr_trace_duration",
  "/jax/core/compile/jaxpr_to_mlir_module_duration",
  "/jax/core/compile/backend_compile_duration",
)


class CompilationWatch:
  """Knows what is being compiled, by whichever thread. A context manager."""

  def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
    self._clock = clock
    self._lock = threading.Lock()
    # By thread: programs within programs, with when they were begun.
    self._running: dict[int, list[tuple[str, float]]] = {}
    self._busy_since = 0.0
    self._busy_s = 0.0

  @property
  def seconds(self) -> float:
    """Time until now in which at least one thread compiled."""
    with self._lock:
      running = self._clock() - self._busy_since if self._running else 0.0
      return self._busy_s + running

  def current(self, least_s: float = 0.0) -> tuple[str, float] | None:
    """The program in work for longest, and since when; None: none that long.

    Programs that have taken less than `least_s` seconds are left out.
    """
    with self._lock:
      running = [programs[0] for programs in self._running.values()]
    name, since = min(running, key=lambda x: x[1], default=("", self._clock()))
    if not name or self._clock() - since < least_s:
      return None
    return name, since

  def __enter__(self) -> Self:
    jax.monitoring.register_scalar_listener(self._begin)
    jax.monitoring.register_event_time_span_listener(self._end)
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    jax.monitoring.unregister_scalar_listener(self._begin)
    jax.monitoring.unregister_event_time_span_listener(self._end)

  def _begin(self, event: str, value: float | int, **facts: Any) -> None:
    del value
    if event not in _EVENTS:
      return
    now_s = self._clock()
    with self._lock:
      if not self._running:
        self._busy_since = now_s
      mine = self._running.setdefault(threading.get_ident(), [])
      mine.append((_readable(str(facts.get("fun_name", "a program"))), now_s))

  def _end(
    self, event: str, start_time: float, end_time: float, **facts: Any
  ) -> None:
    del start_time, end_time, facts
    if event not in _EVENTS:
      return
    with self._lock:
      mine = self._running.get(threading.get_ident(), [])
      if not mine:  # it was begun before anyone listened
        return
      mine.pop()
      if not mine:
        del self._running[threading.get_ident()]
      if not self._running:
        self._busy_s += self._clock() - self._busy_since


def _readable(name: str) -> str:
  """`jit(_update)` and `jit__update` are the program `update`."""
  name = name.removeprefix("jit(").removesuffix(")")
  return name.removeprefix("jit_").strip("_<>") or "a program"
