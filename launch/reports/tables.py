"""Tables of success and of time: the same rows for terminal and report."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.processes.terminal import plain_console
from launch.reports import numbers
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
class Cell:
  """One number with its interval, and if it is emphasised."""

  text: str
  note: str = ""
  sure: bool | None = None  # of a difference: are the two intervals disjoint?


@dataclasses.dataclass(frozen=True)
class BeforeAfter:
  """The table of one mode: a row per policy, a column per task and the mean."""

  mode: str
  columns: tuple[Cell, ...]  # a task's name and its number of attempts
  rows: tuple[tuple[str, tuple[Cell, ...]], ...]


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
  columns = [Cell(task, f"n = {n}") for task, n in usual.items()]
  if len(tasks) > 1:
    columns.append(Cell(MEAN, "of tasks"))
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
  console.print(f"Seed {facts['seed']}, commit {facts['commit']}")


def _usual_n(evaluations: Sequence[Evaluation], task: str) -> int:
  """Returns the most frequent number of episodes of the task."""
  counts = [e.tasks[task].n for e in evaluations if task in e.tasks]
  return max(counts, key=lambda n: (counts.count(n), n))


def _cells(
  source: Evaluation | Comparison, usual: Mapping[str, int]
) -> tuple[Cell, ...]:
  cells = [_cell(source.tasks.get(task), n) for task, n in usual.items()]
  if len(usual) > 1:
    # A mean of other tasks than the row above has would mislead.
    has_all = source.tasks.keys() >= usual.keys()
    cells.append(_cell(source.mean if has_all else None, sum(usual.values())))
  return tuple(cells)


def _cell(source: Score | Difference | None, usual_n: int) -> Cell:
  if source is None:
    return Cell("–")
  if isinstance(source, Score):
    note = numbers.interval(source.low, source.high)
    if source.n != usual_n:
      note += f", n = {source.n}"
    return Cell(numbers.percent(source.success), note)
  return Cell(
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
