"""A table of claims: what a paper reports, what was found, what could be found.

A page has one line per claim in a block, from the scores and the costs that are
kept in one folder:

  <!-- claims: evidence
  Task normalisation | 5.6 | spreads.csv rl greedy dbbench: norm - none
  -->
  <!-- end -->

The second field is the size in points that a paper reports, below 0 for a loss;
`-` if it reports none, and then the table has the difference that so many seeds
find in 80 % of cases. The third names scores, stage, mode, task (`mean` for
all) and a contrast as `finals.contrast` reads it. A fourth may say why the arms
could show nothing, whatever their spread. `costs.csv` has cells and core hours
of each file, with the stages before RL and evaluations.
"""

import csv
import dataclasses
import pathlib
import re
from collections.abc import Mapping

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from launch.comparisons.finals import contrasts
from launch.comparisons.runs import read_arms
from launch.comparisons.statistics import (
  LEVEL,
  PairedDifference,
  detectable_difference,
  paired_power,
)
from launch.reports import numbers

ENOUGH = 0.8  # power from which an experiment could show a size
HEAD = (
  "claim",
  "paper",
  "here",
  "seeds",
  "cells",
  "core hours",
  "could it show the paper's size?",
)
_COSTS = "costs.csv"
_LINE = re.compile(
  r"(?P<label>[^|]+)\|\s*(?P<size>-|-?\d*\.?\d+)\s*\|\s*"
  r"(?P<file>\S+\.csv) (?P<stage>\S+) (?P<mode>[^:]+) (?P<task>\S+): "
  r"(?P<after>.+?) - (?P<before>[^|]+)(\|(?P<why_not>[^|]+))?"
)


@dataclasses.dataclass(frozen=True)
class Claim:
  """One line of the block, as written."""

  label: str
  size: float | None  # points of success
  file: str
  stage: str
  mode: str
  task: str
  after: str
  before: str
  why_not: str  # why nothing could be shown; "" if something could


def read_claim(line: str) -> Claim:
  """Reads a line; raises `ConfigError` if it is none."""
  found = _LINE.fullmatch(line.strip())
  if found is None:
    raise ConfigError(
      f"{line!r} is no claim: write `label | size or - | FILE.csv STAGE MODE "
      "TASK: arm - arm`"
    )
  words = {
    name: (text or "").strip() for name, text in found.groupdict().items()
  }
  size = words.pop("size")
  return Claim(size=None if size == "-" else float(size), **words)


def rows(text: str, folder: pathlib.Path) -> list[list[str]]:
  """Returns the cells of the table, and its total; files are in `folder`."""
  claims = [read_claim(line) for line in text.splitlines() if line.strip()]
  if not claims:
    raise ConfigError(
      "a block of claims has none: write a line `label | size or - | FILE.csv "
      "STAGE MODE TASK: arm - arm` for each"
    )
  costs = read_costs(folder / _COSTS)
  for claim in claims:
    if claim.file not in costs:
      raise ConfigError(
        f"{folder / _COSTS} has no costs of {claim.file}: add its cells and "
        "core hours"
      )
  spent = [costs[name] for name in {claim.file for claim in claims}]
  cells, hours = (sum(each) for each in zip(*spent, strict=True))
  return [
    *(_row(claim, folder, costs) for claim in claims),
    ["all of these", "", "", "", str(cells), f"{hours:.1f}", ""],
  ]


def read_costs(path: pathlib.Path) -> dict[str, tuple[int, float]]:
  """Returns cells and core hours by name of the scores' file."""
  with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
    return {
      row["scores"]: (int(row["cells"]), float(row["core_hours"]))
      for row in csv.DictReader(file)
    }


def _row(
  claim: Claim, folder: pathlib.Path, costs: Mapping[str, tuple[int, float]]
) -> list[str]:
  pair = (claim.after, claim.before)
  arms = read_arms([folder / claim.file])
  changes = contrasts(arms, claim.stage, claim.mode, [pair])
  tests = changes[0].tasks.get(claim.task) if changes else None
  if tests is None:
    raise ConfigError(
      f"{claim.file} has no seed with {claim.after} and {claim.before} after "
      f"{claim.stage}, {claim.mode}, on {claim.task}"
    )
  found = tests.paired
  cells, hours = costs[claim.file]
  return [
    claim.label,
    "" if claim.size is None else numbers.points(claim.size / 100),
    _here(found),
    str(found.n),
    str(cells),
    f"{hours:.1f}",
    _could(claim, found),
  ]


def _here(found: PairedDifference) -> str:
  interval = numbers.signed_interval(found.low, found.high)
  return f"{numbers.points(found.mean)} ({interval})"


def _could(claim: Claim, found: PairedDifference) -> str:
  if claim.why_not:
    return f"no: {claim.why_not}"
  if found.n < 2:
    return "not known"
  if claim.size is None:
    return f"finds {100 * detectable_difference(found.spread, found.n):.1f}"
  chance = paired_power(
    abs(claim.size) / 100, found.spread, found.n, level=1 - LEVEL
  )
  word = "yes" if chance >= ENOUGH else "no"
  return f"{word} ({100 * chance:.0f} %)"
