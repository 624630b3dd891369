"""Tables of success and of time: the same rows for terminal and report."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl_jax.metrics import Row
from launch.processes.terminal import plain_console
from launch.reports import numbers
from launch.reports.curves import RL, Curve, curves_below
from launch.reports.summary import (
  ALL,
  MODES,
  Comparison,
  Difference,
  Evaluation,
  Score,
  Summary,
)

MEAN = "mean"
# Players that RL's policy is shown beside: stage, title, and short title.
BESIDE = (
  ("scripted", "scripted baseline", "script"),
  ("expert", "error-free expert", "expert"),
)


@dataclasses.dataclass(frozen=True)
class TableCell:
  """One number with its interval, and if it is emphasised."""

  text: str
  note: str = ""
  sure: bool | None = None  # of a difference: are the two intervals disjoint?


@dataclasses.dataclass(frozen=True)
class BeforeAfter:
  """The table of one mode: a row per policy, a column per task and the mean."""

  mode: str
  columns: tuple[TableCell, ...]  # a task's name and its number of attempts
  rows: tuple[tuple[str, tuple[TableCell, ...]], ...]


def before_after(summary: Summary, mode: str) -> BeforeAfter | None:
  """Builds success per policy and task; None if the mode was not evaluated."""
  name_of = functools.partial(
    numbers.stage_name, has_warm_start=summary.has_warm_start
  )
  evaluations = [
    (name_of(stage), summary.evaluation(stage, mode))
    for stage in ("untrained", "warm_start", "rl")
  ]
  shown: list[tuple[str, Evaluation | Comparison | None]] = [
    *evaluations,
    (f"RL − {name_of('warm_start')}", summary.comparison("warm_start", mode)),
  ]
  if mode == "greedy":
    for stage, title, short in BESIDE:
      evaluations.append((title, summary.evaluation(stage, mode)))
      shown.append(evaluations[-1])
      shown.append((f"RL − {short}", summary.comparison(stage, mode)))
  scores = [evaluation for _, evaluation in evaluations if evaluation]
  if not scores:
    return None
  tasks = list(dict.fromkeys(name for each in scores for name in each.tasks))
  usual = {task: _usual_n(scores, task) for task in tasks}
  columns = [TableCell(task, f"n = {n}") for task, n in usual.items()]
  if len(tasks) > 1:
    columns.append(TableCell(MEAN, "of tasks"))
  return BeforeAfter(
    mode=mode,
    columns=tuple(columns),
    rows=tuple(
      (title, _cells(source, usual)) for title, source in shown if source
    ),
  )


@dataclasses.dataclass(frozen=True)
class StageTime:
  """One row of the table of time."""

  title: str
  duration: str
  share: float  # of all stages
  success: str  # greedy, after the stage; "" of stages that train nothing
  per_minute: str  # its rise in points per minute of the stage


def stage_times(summary: Summary) -> list[StageTime]:
  """Returns a row per stage, and a last one of all; none if none was timed."""
  if not summary.total_wall_s:
    return []
  learning = summary.learning
  rows = []
  for stage, seconds in (*summary.wall_s.items(), (ALL, summary.total_wall_s)):
    learned = learning.get(stage)
    gain = learned.per_minute if learned else None
    rows.append(
      StageTime(
        title=numbers.stage_name(stage, has_warm_start=summary.has_warm_start),
        duration=numbers.duration(seconds),
        share=seconds / summary.total_wall_s,
        success=numbers.percent(learned.success) if learned else "",
        per_minute="" if gain is None else numbers.points(gain),
      )
    )
  return rows


def print_summary(summary: Summary, console: Console | None = None) -> None:
  """Prints the content of `write_summary`, and nothing else."""
  console = console or plain_console()
  for mode in MODES:
    table = before_after(summary, mode)
    if table is not None:
      console.print(_rich(table))
  if rows := stage_times(summary):
    console.print(_rich_times(rows, has_warm_start=summary.has_warm_start))
  facts = summary.facts
  if "final_policy" in facts:
    console.print(f"RL is {facts['final_policy']}")
  console.print(f"Seed {facts['seed']}, commit {facts['commit']}")


def _usual_n(evaluations: Sequence[Evaluation], task: str) -> int:
  """Returns the most frequent number of episodes of the task."""
  counts = [e.tasks[task].n for e in evaluations if task in e.tasks]
  return max(counts, key=lambda n: (counts.count(n), n))


def _cells(
  source: Evaluation | Comparison, usual: Mapping[str, int]
) -> tuple[TableCell, ...]:
  cells = [_cell(source.tasks.get(task), n) for task, n in usual.items()]
  if len(usual) > 1:
    # A mean of other tasks than the row above has would mislead.
    has_all = source.tasks.keys() >= usual.keys()
    cells.append(_cell(source.mean if has_all else None, sum(usual.values())))
  return tuple(cells)


def _cell(source: Score | Difference | None, usual_n: int) -> TableCell:
  if source is None:
    return TableCell("–")
  if isinstance(source, Score):
    note = numbers.interval(source.low, source.high)
    if source.n != usual_n:
      note += f", n = {source.n}"
    return TableCell(numbers.percent(source.success), note)
  return TableCell(
    numbers.points(source.difference),
    numbers.signed_interval(source.low, source.high),
    sure=source.disjoint,
  )


def _rich_times(rows: Sequence[StageTime], *, has_warm_start: bool) -> Table:
  caption = "points per minute: rise of greedy success"
  if has_warm_start:
    caption += "; the warm start's minutes include tokenizer and demonstrations"
  drawn = Table(
    title="Where the minutes went",
    caption=caption,
    title_justify="left",
    caption_justify="left",
    box=SIMPLE_HEAD,
  )
  drawn.add_column("")
  for heading in ("time", "share", "success", "points/min"):
    drawn.add_column(heading, justify="right")
  for row in rows:
    share = f"{100 * row.share:.0f} %"
    drawn.add_row(row.title, row.duration, share, row.success, row.per_minute)
  return drawn


def _rich(table: BeforeAfter) -> Table:
  drawn = Table(
    title=f"Success on held-out tasks, {table.mode}, with 95 % intervals",
    caption="differences in points; * the two intervals are disjoint",
    title_justify="left",
    caption_justify="left",
    box=SIMPLE_HEAD,
  )
  drawn.add_column("")
  for column in table.columns:
    drawn.add_column(f"{column.text}\n{column.note}", justify="right")
  for name, cells in table.rows:
    texts = [
      Text.assemble(
        (f"{cell.text}{'*' if cell.sure else ''}", "bold"),
        "\n",
        (cell.note, "dim"),
      )
      for cell in cells
    ]
    drawn.add_row(name, *texts)
  return drawn


# --- Episodes of training: their number, length, and losses to faults ---------

_FINISHED = "rollout/finished"
_STATUS = "rollout/status"
Values = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class AttemptsTable:
  """A row per count, a column per task; empty texts for missing values."""

  tasks: tuple[str, ...]
  rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class _Line:
  """A row of the table: its metric, label and format."""

  metric: str
  label: str
  write: Callable[[float], str] = numbers.count
  is_total: bool = True  # a counter, which begins anew when a run is resumed


_ENDED = _Line(_FINISHED, "attempts")
_OTHERS = (
  _Line("rollout/sampled_tokens", "sampled tokens"),
  _Line("rollout/turns", "turns per attempt*", "{:.1f}".format, False),
  _Line("rollout/tokens", "tokens per attempt*", "{:.0f}".format, False),
  _Line("rollout/episode_s", "time per attempt*", numbers.duration, False),
  _Line(
    "rollout/token_identity", "token identity held*", numbers.percent, False
  ),
  _Line("rollout/retried", "retried after a fault"),
  _Line("rollout/masked", "lost to faults"),
  _Line("rollout/late", "cut off by a deadline"),
  _Line("groups/finished", "groups"),
  _Line("groups/dropped", "groups dropped"),
)


# Shares, by the metrics of `train.collapse.answers`.
_ANSWERS = {
  "calls/share_of_answers": "answers with a call",
  "calls/malformed": "calls that cannot be read",
  "calls/unknown_tool": "calls of unknown tools",
  "calls/refused": "calls refused by a schema",
  "answers/cut": "answers cut by length",
}
_BATCHES = 5  # of each of their means


def attempts_table(rows: Sequence[Row]) -> AttemptsTable | None:
  """Counts the episodes of all starts of RL; None without records."""
  tasks = tuple(c.name for c in curves_below(rows, RL, _FINISHED))
  if not tasks:
    return None
  starts = _starts([row.values for row in rows if row.stage == RL])
  drawn = [
    (line.label, tuple(_text(starts, line, task) for task in tasks))
    for line in (_ENDED, *_statuses(rows), *_OTHERS)
  ]
  for metric, label in _ANSWERS.items():
    changes = {c.name: _change(c) for c in curves_below(rows, RL, metric)}
    if changes:
      drawn.append((label, tuple(changes.get(task, "–") for task in tasks)))
  return AttemptsTable(
    tasks, tuple((label, texts) for label, texts in drawn if any(texts))
  )


def _change(curve: Curve) -> str:
  """Returns the share of the first batches and of the latest."""
  ends = (curve.values[:_BATCHES], curve.values[-_BATCHES:])
  return " → ".join(numbers.percent(math.fsum(e) / len(e)) for e in ends)


def _statuses(rows: Sequence[Row]) -> list[_Line]:
  """Shares of the episodes' final statuses, for those that occur."""
  found = {c.name.split("/")[0] for c in curves_below(rows, RL, _STATUS)}
  return [
    _Line(f"{_STATUS}/{status}", status.replace("_", " "))
    for status in sorted(found)
  ]


def _starts(rows: Sequence[Values]) -> list[Values]:
  """Returns the last row of each start of the run; the next counts from 0
  again.

  A new start shows in any of its counters: they only rise during one start.
  """
  counters = [line.metric for line in (_ENDED, *_OTHERS) if line.is_total]
  return [
    row
    for row, later in itertools.zip_longest(rows, rows[1:])
    if later is None or _began_anew(row, later, counters)
  ]


def _began_anew(row: Values, later: Values, counters: Sequence[str]) -> bool:
  return any(
    name in later and later[name] < value
    for name, value in row.items()
    if name.startswith(tuple(f"{counter}/" for counter in counters))
  )


def _text(starts: Sequence[Values], line: _Line, task: str) -> str:
  name = f"{line.metric}/{task}"
  found = [values[name] for values in starts if name in values]
  if not found:
    return ""
  value = math.fsum(found) if line.is_total else found[-1]
  return line.write(value) if math.isfinite(value) else ""
