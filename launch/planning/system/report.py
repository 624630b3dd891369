"""A plan of the whole system as tables for people, and as JSON values."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from launch.planning.report import make_table
from launch.planning.system.measured import Measured
from launch.planning.system.prediction import System
from launch.planning.system.split import Split

_ROWS: Mapping[str, Callable[[System], str]] = {
  "s of a step: learner alone": lambda s: _number(s.learner_s),
  "s of a step: rollouts alone": lambda s: _number(s.rollouts_s),
  "s of a step: bound on staleness": lambda s: _number(s.staleness_s),
  "limit": lambda s: s.limit,
  "s of a step, predicted": lambda s: _number(s.step_s),
  "% of time that the learner waits": lambda s: f"{100 * s.learner_waits:.1f}",
  "% of the rollouts' rate unused": lambda s: f"{100 * s.rollouts_idle:.1f}",
  "staleness, mean versions": lambda s: f"{s.staleness_mean:.2f}",
  "staleness, at most": lambda s: f"{s.staleness_max}",
  "episodes in flight, mean": lambda s: f"{s.episodes_in_flight:,.0f}",
  "busy slots, mean": lambda s: f"{s.busy_slots:,.0f}",
  "slots that answers can fill": lambda s: f"{s.usable_slots:,.0f}",
  "steps/hour": lambda s: f"{s.steps_per_hour:,.1f}",
  "updates/hour": lambda s: f"{s.updates_per_hour:,.1f}",
  "trajectories' tokens/s, learner alone": (
    lambda s: f"{s.learner_tokens_per_s:,.0f}"
  ),
  "trajectories' tokens/s": lambda s: f"{s.trained_tokens_per_s:,.0f}",
  "sampled tokens/s, every slot busy": (
    lambda s: f"{s.rollout_tokens_per_s:,.0f}"
  ),
  "sampled tokens/s": lambda s: f"{s.sampled_tokens_per_s:,.0f}",
  "$/hour": lambda s: f"{s.dollars_per_hour:,.2f}",
  "$/step": lambda s: _number(s.dollars_per_step),
}


def show(
  console: Console,
  systems: Mapping[str, System],
  *,
  slices: str,
  notes: Sequence[str],
) -> None:
  """Prints a column for each system, by its name, and notes below."""
  table = make_table(f"The whole run on {slices}", "", *systems)
  for part in next(iter(systems.values())).learner_parts_s:
    cells = (_number(s.learner_parts_s[part]) for s in systems.values())
    table.add_row(f"s of the learner: {part}", *cells)
  table.add_section()
  is_priced = all(s.dollars_per_hour for s in systems.values())
  for name, cell in _ROWS.items():
    if name.startswith("$") and not is_priced:
      continue
    table.add_row(name, *map(cell, systems.values()))
  console.print(table)
  for note in notes:
    console.print(note)


def show_split(
  console: Console, splits: Sequence[Split], num_chips: int
) -> None:
  """Prints splits of the chips, fastest first."""
  table = make_table(
    f"Splits of {num_chips} chips, by steps per hour",
    "learner",
    "mesh",
    "servers",
    "chips",
    "steps/hour",
    "$/step",
    "% learner waits",
    "% rollouts unused",
    "limit",
    caption="$/step counts the chips that a split takes, which may be fewer",
  )
  cheapest = min(
    (s.system.dollars_per_step for s in splits if s.system), default=0
  )
  for split in splits:
    head = (split.learner.name, split.mesh, f"{split.num_servers}")
    system = split.system
    if system is None:
      table.add_row(*head, f"{split.num_chips}", "does not fit")
      continue
    mark = " (cheapest)" * (system.dollars_per_step == cheapest)
    table.add_row(
      *head,
      f"{split.num_chips}",
      f"{system.steps_per_hour:,.1f}",
      f"{_number(system.dollars_per_step)}{mark}",
      f"{100 * system.learner_waits:.1f}",
      f"{100 * system.rollouts_idle:.1f}",
      system.limit,
    )
  console.print(table)


def show_measured(console: Console, found: Measured, system: System) -> None:
  """Prints what a run measured beside what is predicted from its rates."""
  table = make_table(
    f"{found.num_steps} steps of the run, and its prediction",
    "",
    "measured",
    "predicted",
  )
  for name, measured, predicted in (
    ("s of a step", found.step_s, system.step_s),
    (
      "% of time that the learner waits",
      100 * found.learner_waits,
      100 * system.learner_waits,
    ),
    ("staleness, mean versions", found.staleness_mean, system.staleness_mean),
  ):
    table.add_row(name, f"{measured:.2f}", f"{predicted:.2f}")
  console.print(table)


def as_json(
  systems: Mapping[str, System],
  splits: Sequence[Split] = (),
  measured: Measured | None = None,
) -> dict[str, Any]:
  """Returns all results; seconds, shares and dollars as in `System`."""
  return {
    "systems": {name: _system(each) for name, each in systems.items()},
    "splits": [
      {
        "learner": split.learner.name,
        "mesh": split.mesh,
        "servers": split.num_servers,
        "chips": split.num_chips,
        "system": split.system and _system(split.system),
      }
      for split in splits
    ],
    "measured": measured and dataclasses.asdict(measured),
  }


def _number(value: float) -> str:
  """Two decimals, or three digits of a number below 1."""
  return f"{value:,.2f}" if value >= 1 or not value else f"{value:.3g}"


def _system(system: System) -> dict[str, Any]:
  return {**dataclasses.asdict(system), "limit": system.limit}
