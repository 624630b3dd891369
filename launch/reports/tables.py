"""Tables of success and of time: the same rows for terminal and report."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.processes.terminal import plain_console
from launch.reports import numbers
from launch.reports.curves import RL, curves_below
from launch.reports.metrics_file import Row
from launch.reports.summary import (
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


def stage_times(summary: Summary) -> list[StageTime]:
  """Returns a row per stage, and a last one of all; none if none was timed."""
  total = summary.total_wall_s
  return [
    StageTime(
      numbers.stage_name(stage, has_warm_start=summary.has_warm_start),
      numbers.duration(seconds),
      seconds / total,
    )
    for stage, seconds in (*summary.wall_s.items(), ("all", total))
    if total
  ]


def print_summary(summary: Summary, console: Console | None = None) -> None:
  """Prints the content of `write_summary`, and nothing else."""
  console = console or plain_console()
  for mode in MODES:
    table = before_after(summary, mode)
    if table is not None:
      console.print(_rich(table))
  if rows := stage_times(summary):
    console.print(_rich_times(rows))
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


def _rich_times(rows: Sequence[StageTime]) -> Table:
  drawn = Table(
    title="Where the minutes went", title_justify="left", box=SIMPLE_HEAD
  )
  drawn.add_column("")
  for heading in ("time", "share"):
    drawn.add_column(heading, justify="right")
  for row in rows:
    drawn.add_row(row.title, row.duration, f"{100 * row.share:.0f} %")
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
# Metrics, their labels and formats; counters are of the run's latest start.
_ATTEMPTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
  (_FINISHED, "attempts", numbers.count),
  ("rollout/sampled_tokens", "sampled tokens", numbers.count),
  ("rollout/turns", "turns per attempt*", "{:.1f}".format),
  ("rollout/tokens", "tokens per attempt*", "{:.0f}".format),
  ("rollout/episode_s", "time per attempt*", numbers.duration),
  ("rollout/token_identity", "token identity held*", numbers.percent),
  ("rollout/retried", "retried after a fault", numbers.count),
  ("rollout/masked", "lost to faults", numbers.count),
  ("rollout/late", "cut off by a deadline", numbers.count),
  ("groups/finished", "groups", numbers.count),
  ("groups/dropped", "groups dropped", numbers.count),
  ("calls/share_of_answers", "answers with a call", numbers.percent),
  ("calls/malformed", "calls that cannot be read", numbers.percent),
  ("calls/unknown_tool", "calls of unknown tools", numbers.percent),
  ("calls/refused", "calls refused by a schema", numbers.percent),
  ("answers/cut", "answers cut by length", numbers.percent),
)


@dataclasses.dataclass(frozen=True)
class AttemptsTable:
  """A row per count, a column per task; empty texts for missing values."""

  tasks: tuple[str, ...]
  rows: tuple[tuple[str, tuple[str, ...]], ...]


def attempts_table(rows: Sequence[Row]) -> AttemptsTable | None:
  """Shows the newest counts of RL's episodes; None without records."""
  tasks = tuple(c.name for c in curves_below(rows, RL, _FINISHED))
  if not tasks:
    return None
  newest: dict[str, float] = {}
  for row in rows:
    newest |= row.values if row.stage == RL else {}
  statuses = dict.fromkeys(
    curve.name.split("/")[0] for curve in curves_below(rows, RL, _STATUS)
  )
  drawn = [
    *_ATTEMPTS[:1],
    *(
      (f"{_STATUS}/{name}", name.replace("_", " "), numbers.count)
      for name in statuses
    ),
    *_ATTEMPTS[1:],
  ]
  texts = {
    label: tuple(_text(newest, f"{name}/{task}", write) for task in tasks)
    for name, label, write in drawn
  }
  return AttemptsTable(tasks, tuple(x for x in texts.items() if any(x[1])))


def _text(
  values: Mapping[str, float], name: str, write: Callable[[float], str]
) -> str:
  value = values.get(name, math.nan)
  return write(value) if math.isfinite(value) else ""
