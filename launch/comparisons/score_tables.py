"""Prints an evaluation: success or pass@k, statuses, and what was lost."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

from agentrl_jax.controller.evaluation import TaskScore
from agentrl_jax.data.records import Task
from agentrl_jax.env.scripted import TRIVIAL_SUCCESS
from launch.comparisons.attempts import Attempt, Lost, pass_rates, status_shares
from launch.comparisons.statistics import Estimate
from launch.reports.numbers import interval, percent


def warnings_of(scores: Mapping[str, TaskScore]) -> list[str]:
  """Returns a sentence for each scripted policy that wins too often."""
  return [
    f"{name} wins {100 * s.success_rate:.1f} % of these tasks without "
    f"thinking: more than {100 * TRIVIAL_SUCCESS:.0f} %"
    for name, s in scores.items()
    if not name.endswith(" expert") and s.success_rate > TRIVIAL_SUCCESS
  ]


def _rates(score: TaskScore) -> tuple[str, str, str]:
  """Returns number of tasks, success and its interval, as cells of a table."""
  if not score.num_tasks:
    return "0", "", ""
  low, high = score.interval
  return (
    str(score.num_tasks),
    f"{100 * score.success_rate:.1f} %",
    f"{100 * low:.1f} to {100 * high:.1f}",
  )


def _task_column() -> Column:
  """Returns a column whose names are never cut off."""
  return Column("task", no_wrap=True)


def print_scripted(scores: Mapping[str, TaskScore], console: Console) -> None:
  """Prints the table of an environment's README, and warnings below it."""
  table = Table("policy", "n", "success", "95 %", box=box.MARKDOWN)
  for name, s in scores.items():
    table.add_row(name, *_rates(s))
  console.print(table)
  _print_lost_tasks(scores, console)
  for sentence in warnings_of(scores):
    console.print(sentence)


def print_scores(scores: Mapping[str, TaskScore], console: Console) -> None:
  """Prints a table of success with its 95 % interval."""
  table = Table(
    _task_column(), "n", "success", "95 %", "reward", "lost", "statuses"
  )
  for name, s in scores.items():
    table.add_row(
      name,
      *_rates(s),
      f"{s.mean_reward:.3f}" if s.num_tasks else "",
      str(s.num_lost),
      ", ".join(f"{k} {v}" for k, v in s.statuses.items()),
    )
  console.print(table)
  _print_lost_tasks(scores, console)
  for name, s in scores.items():
    if s.num_lost:
      kinds = ", ".join(f"{k} {v}" for k, v in s.faults.items())
      console.print(
        f"{name}: {s.num_lost} tasks were lost to faults ({kinds}, retries "
        "counted each), which the log describes"
      )


def _print_lost_tasks(
  scores: Mapping[str, TaskScore], console: Console
) -> None:
  num_lost = sum(s.num_lost for s in scores.values())
  num_scored = sum(s.num_tasks for s in scores.values())
  _print_total(num_lost, num_scored + num_lost, "tasks", console)


def _print_total(
  num_lost: int, num_asked: int, noun: str, console: Console
) -> None:
  if num_lost:
    console.print(
      f"lost in total: {num_lost} of {num_asked} {noun}, which count in no rate"
    )


def print_attempts(
  attempts: Mapping[str, Mapping[Task, Sequence[Attempt]]],
  console: Console,
  num_samples: int = 1,
) -> None:
  """Prints pass@k, and AgentBench's shares of statuses (its Table 7).

  Tasks without any of their `num_samples` attempts are lost ones.
  """
  rates = {name: pass_rates(t) for name, t in attempts.items()}
  lost = {name: Lost.of(t, num_samples) for name, t in attempts.items()}
  ks = sorted({k for each in rates.values() for k in each})
  table = Table(
    _task_column(), "tasks", "lost", "lost attempts", *(f"pass@{k}" for k in ks)
  )
  for name, each in rates.items():
    most = each[1].n if each else 0
    table.add_row(
      name,
      str(most),
      str(lost[name].num_tasks),
      str(lost[name].num_attempts),
      *(_pass_cell(each[k], most) if k in each else "" for k in ks),
    )
  console.print(table)
  _print_total(
    sum(each.num_attempts for each in lost.values()),
    num_samples * sum(map(len, attempts.values())),
    "attempts",
    console,
  )
  shares = {name: status_shares(t) for name, t in attempts.items()}
  statuses = sorted({status for each in shares.values() for status in each})
  table = Table(_task_column(), *statuses)
  for name, of in shares.items():
    table.add_row(name, *(percent(of.get(status, 0.0)) for status in statuses))
  console.print(table)


def _pass_cell(rate: Estimate, num_tasks: int) -> str:
  """Returns a rate, and of how many tasks it is if some lack attempts."""
  of = f", {rate.n} tasks" if rate.n < num_tasks else ""
  return f"{percent(rate.mean)} ({interval(rate.low, rate.high)}{of})"
