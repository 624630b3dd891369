"""Live progress of a stage in the terminal.

Shows rate, time left, compilations, success per task, queue fill and
staleness, and keeps nothing: lasting figures go through
`metrics_file`. If the output is no terminal (a log file, CI), a plain line is
written every few seconds, and every minute while no step ends.

  with StageProgress("rl", total_steps=300) as progress:
    progress.update(step, metrics)
"""

import collections
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl_jax.controller.metrics import stopped_tasks
from launch.processes.terminal import plain_console
from launch.reports import curves
from launch.reports.numbers import duration, percent, stage_name

_FIGURES = {
  curves.LOSS: "loss",
  curves.HELD_OUT_LOSS: "held-out loss",
  curves.MEAN_REWARD: "reward",
  curves.EVALUATED: "held-out success",
  curves.ENTROPY: "entropy",
  curves.DISTANCE: "log-ratio",
  curves.GRADIENT_NORM: "gradient norm",
}
_OF_AN_UPDATE = tuple(_FIGURES.keys() - {curves.MEAN_REWARD, curves.EVALUATED})
_BAR_WIDTH = 30
_REFRESH_PER_S = 2
_RATE_STEPS = 20  # the rate is that of the latest steps, not of all
_LEAST_COMPILED_S = 1.0  # shorter compilations are not worth a word
_SILENT_S = 60.0  # in a log, without a step
_SAME_PROGRAM_S = 3.0  # between two looks at one that still runs
# Work of the programs that take long to compile, and what asks for more.
PURPOSES = {
  "prefill": "which reads prompts (one for each size of engine.prefill_chunks)",
  "decode": "which samples answers (one for each size of engine.num_slot_sizes "
  "and engine.lengths, and with grammars)",
  "copy_layer": "which hands weights to the engine",
  "add_gradient": "which computes gradients",
  "apply_gradient": "which updates the params",
  "logprobs": "which scores a batch by the reference or the policy",
  "checksums": "which guards checkpoints",
}


class Pace:
  """Rate and time left, from the latest steps without compilation."""

  def __init__(self, total_steps: int, *, begun_s: float, initial: int) -> None:
    self._total = total_steps
    self._last_s, self.step = begun_s, initial  # `step` steps are done
    # Steps and the seconds that they took, of each report.
    self._taken: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=_RATE_STEPS
    )

  def reached(
    self, step: int, now_s: float, *, has_compiled: bool = False
  ) -> None:
    """Notes that `step` steps are done.

    The time since the last report is not counted if `has_compiled`: no later
    step will take as long.
    """
    if not has_compiled:
      self._taken.append((step - self.step, now_s - self._last_s))
    self._last_s, self.step = now_s, step

  @property
  def steps_per_s(self) -> float:
    """Steps per second; 0 while unknown."""
    steps = sum(number for number, _ in self._taken)
    seconds = sum(seconds for _, seconds in self._taken)
    return steps / seconds if seconds > 0 else 0.0

  @property
  def left(self) -> str:
    """Time left at this rate."""
    if not self.steps_per_s:
      return "?"
    return duration(max(self._total - self.step, 0) / self.steps_per_s)

  @property
  def rate(self) -> str:
    """Steps per second, or seconds per step if a step takes longer than one."""
    if not self.steps_per_s:
      return "? steps/s"
    if self.steps_per_s < 1:
      return f"{1 / self.steps_per_s:.1f} s/step"
    return f"{self.steps_per_s:.1f} steps/s"


class StageProgress:
  """A live display of one stage. A context manager: open it, update it.

  A figure stays on display until a newer one comes, so each update may contain
  only new figures. Of an update that was skipped, the reason is shown in place
  of the learner's figures. `initial_step` is the first step of a resumed stage.
  """

  def __init__(
    self,
    stage: str,
    total_steps: int,
    *,
    initial_step: int = 0,
    console: Console | None = None,
    plain_every_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._name = stage_name(stage)
    self._total = total_steps
    self._console = console or plain_console()
    self._plain_every_s = plain_every_s
    self._clock = clock
    self._metrics: dict[str, float] = {}
    self._reasons: list[str] = []  # why the newest update was skipped
    self._begun_s = self._plain_s = clock()
    self._pace = Pace(total_steps, begun_s=self._begun_s, initial=initial_step)
    self._live: Live | None = None
    self._compiling = CompilationWatch(clock)
    self._compiled_s = 0.0  # when the last step was reported
    self._told = "", 0.0  # compilation that was last seen, and when
    self._is_over = threading.Event()
    self._watcher = threading.Thread(target=self._watch, daemon=True)

  def update(self, step: int, metrics: Mapping[str, float]) -> None:
    """Shows `step` steps as done, and their newest figures."""
    now_s = self._clock()
    compiled_s = self._compiling.seconds
    self._pace.reached(
      step,
      now_s,
      has_compiled=compiled_s - self._compiled_s > _LEAST_COMPILED_S,
    )
    self._compiled_s = compiled_s
    # A new dict, not a changed one: the display's thread may be reading it.
    known = {**self._metrics, **metrics}
    self._reasons = [
      f"{text}: skipped"
      for name, text in curves.SKIPPED.items()
      if metrics.get(name)
    ]
    for name in _OF_AN_UPDATE if self._reasons else ():
      known.pop(name, None)
    self._metrics = known
    if self._live:
      self._live.refresh()
    elif now_s - self._plain_s >= self._plain_every_s:
      self._plain_s = now_s
      self._print_line()

  def render(self) -> RenderableType:
    """Renders the display."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
      Text(self._name, style="bold"),
      ProgressBar(self._total, self._pace.step, width=_BAR_WIDTH),
      f"{self._pace.step}/{self._total}",
      self._pace.rate,
      f"{self._elapsed()} gone",
      f"{self._pace.left} left",
    )
    below: list[RenderableType] = [
      self._bars(),
      Text(self._figures(), style="dim"),
    ]
    if stopped := self._stopped():
      below.insert(0, Text(f"  {stopped}", style="red"))
    if told := self._compilation():
      below.insert(0, Text(f"  {told}", style="yellow"))
    return Group(head, *below)

  def line(self) -> str:
    """Renders the same in one line."""
    facts = [
      f"{self._name} {self._pace.step}/{self._total}",
      self._pace.rate,
      f"{self._elapsed()} gone",
      f"{self._pace.left} left",
      *(f"{name} {text}" for name, _, text in self._shares()),
      self._figures(),
      self._stopped(),
    ]
    return " | ".join(fact for fact in facts if fact)

  def __enter__(self) -> Self:
    self._compiling.__enter__()
    if self._console.is_terminal:
      # Drawn anew by a thread of its own, so that the clock goes on showing
      # life while a step takes long.
      self._live = Live(
        get_renderable=self.render,
        console=self._console,
        refresh_per_second=_REFRESH_PER_S,
      )
      self._live.start()
    else:
      self._print_line()
      self._watcher.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._compiling.__exit__(*error)
    if self._live:
      self._live.stop()
      self._live = None
    else:
      self._is_over.set()
      self._watcher.join()
      self._print_line()

  def _stopped(self) -> str:
    """Names the tasks of which no groups start."""
    return "; ".join(
      f"no groups of {task} start: its environment fails or hangs"
      for task in stopped_tasks(self._metrics)
    )

  def _compilation(self) -> str:
    """Describes the running compilation, if it has taken a while."""
    program = self._compiling.current(_LEAST_COMPILED_S)
    if program is None:
      return ""
    name, since = program
    return f"compiling {name}, for {duration(self._clock() - since)} so far"

  def _watch(self) -> None:
    while not self._is_over.wait(_LEAST_COMPILED_S):
      self.look()

  def look(self) -> None:
    """Prints that a step takes long, and once every long compilation."""
    now_s = self._clock()
    if now_s - self._plain_s >= _SILENT_S:
      self._plain_s = now_s
      self._print_line()
    running = self._compiling.current(_LEAST_COMPILED_S)
    if running is None:
      return
    # A program is traced, lowered and compiled: three events, one line.
    (name, _), (told, seen_s) = running, self._told
    self._told = name, now_s
    if name == told and now_s - seen_s <= _SAME_PROGRAM_S:
      return
    purpose = PURPOSES.get(name, "")
    self._console.print(
      f"{self._name}: compiling {name}{purpose and f', {purpose}'}; the time "
      "left leaves this out",
      soft_wrap=True,
      highlight=False,
    )

  def _elapsed(self) -> str:
    return duration(self._clock() - self._begun_s)

  def _shares(self) -> list[tuple[str, float, str]]:
    """Figures that are drawn as bars: name, share, text."""
    shares = {
      name.removeprefix(f"{curves.SUCCESS}/"): value
      for name, value in sorted(self._metrics.items())
      if name.startswith(f"{curves.SUCCESS}/")
    }
    if curves.QUEUE_FILL in self._metrics:
      shares["queue"] = self._metrics[curves.QUEUE_FILL]
    return [(name, value, percent(value)) for name, value in shares.items()]

  def _bars(self) -> Table:
    bars = Table.grid(padding=(0, 2))
    for name, share, text in self._shares():
      style = "magenta" if name == "queue" else "cyan"
      bar = ProgressBar(
        1.0, share, width=_BAR_WIDTH, complete_style=style, finished_style=style
      )
      bars.add_row(Text(f"  {name}"), bar, text)
    return bars

  def _figures(self) -> str:
    figures = self._reasons + [
      f"{label} {self._metrics[name]:.3g}"
      for name, label in _FIGURES.items()
      if name in self._metrics
    ]
    if curves.STALENESS_MEAN in self._metrics:
      figures.append(
        f"staleness {self._metrics[curves.STALENESS_MEAN]:.2f} versions"
      )
    return ", ".join(figures)

  def _print_line(self) -> None:
    self._console.print(self.line(), soft_wrap=True, highlight=False)


_EVENTS = (
  "/jax/core/compile/jaxpr_trace_duration",
  "/jax/core/compile/jaxpr_to_mlir_module_duration",
  "/jax/core/compile/backend_compile_duration",
)


class CompilationWatch:
  """Tracks compilations of all threads. A context manager."""

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
    """Returns the longest running compilation and its start, or None.

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

  def __exit__(self, *error: object) -> None:
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
  """Shortens `jit(_update)` and `jit__update` to `update`."""
  name = name.removeprefix("jit(").removesuffix(")")
  return name.removeprefix("jit_").strip("_<>") or "a program"
