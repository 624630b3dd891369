"""A table of claims: what a paper reports, what was found, what could be found.

A page has one line per claim in a block, from the scores that are kept beside
it:

  <!-- claims: evidence
  Task normalisation | 5.6 | spreads.csv rl greedy dbbench: norm - none
  -->
  <!-- end -->

The second field is the size in points that a paper reports; `-` if it has none.
The third names scores, stage, mode, task (`mean` for all) and a contrast as
`finals.contrast` reads it. Cells and core hours are those of all arms whose
runs are in the file, if `<name>_diagnostics.csv` is beside it.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping

from scipy import stats

from agentrl_jax.errors import ConfigError
from launch.comparisons.diagnostics import read_diagnostics
from launch.comparisons.finals import contrast
from launch.comparisons.runs import read_arms
from launch.comparisons.statistics import LEVEL, PairedDifference
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
_LINE = re.compile(
  r"(?P<label>[^|]+)\|\s*(?P<size>-|[\d.]+)\s*\|\s*"
  r"(?P<file>\S+\.csv) (?P<stage>\S+) (?P<mode>[^:]+) (?P<task>\S+): "
  r"(?P<after>.+?) - (?P<before>.+)"
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


def read_claim(line: str) -> Claim:
  """Reads a line; raises `ConfigError` if it is none."""
  found = _LINE.fullmatch(line.strip())
  if found is None:
    raise ConfigError(
      f"{line!r} is no claim: write `label | size or - | FILE.csv STAGE MODE "
      "TASK: arm - arm`"
    )
  words: dict[str, str] = {k: v.strip() for k, v in found.groupdict().items()}
  size = words.pop("size")
  return Claim(size=None if size == "-" else float(size), **words)


def power(size: float, difference: PairedDifference) -> float:
  """Chance that a paired t test finds a true difference of this size.

  The spread over seeds is that which the experiment had; NaN for one seed, or
  if all of them agree, since the spread is then not known.
  """
  reach = difference.high - difference.mean
  if not reach > 0:
    return math.nan
  degrees = difference.n - 1
  critical = float(stats.t.ppf((1 + LEVEL) / 2, degrees))
  shift = abs(size) * critical / reach
  return float(
    stats.nct.sf(critical, degrees, shift)
    + stats.nct.cdf(-critical, degrees, shift)
  )


def rows(text: str, folder: pathlib.Path) -> list[list[str]]:
  """Returns the cells of the table; files are below `folder`."""
  return [_row(read_claim(line), folder) for line in text.splitlines() if line]


def _row(claim: Claim, folder: pathlib.Path) -> list[str]:
  path = folder / claim.file
  change = contrast(
    read_arms([path]), claim.stage, claim.mode, claim.after, claim.before
  )
  found = change.tasks.get(claim.task) if change else None
  if found is None:
    raise ConfigError(
      f"{claim.file} has no seed with {claim.after} and {claim.before} after "
      f"{claim.stage}, {claim.mode}, on {claim.task}"
    )
  return [
    claim.label,
    "" if claim.size is None else numbers.points(claim.size / 100),
    _here(found),
    str(found.n),
    *_cost(path.with_name(f"{path.stem}_diagnostics.csv")),
    _could(claim.size, found),
  ]


def _here(found: PairedDifference) -> str:
  interval = numbers.signed_interval(found.low, found.high)
  return f"{numbers.points(found.mean)} ({interval})"


def _cost(path: pathlib.Path) -> tuple[str, str]:
  """Returns cells and core hours; empty where they are not kept."""
  if not path.is_file():
    return "", ""
  cells: list[Mapping[str, float]] = [
    values
    for seeds in read_diagnostics(path).values()
    for values in seeds.values()
  ]
  hours = math.fsum(values.get("hours", math.nan) for values in cells)
  return str(len(cells)), "" if math.isnan(hours) else f"{hours:.1f}"


def _could(size: float | None, found: PairedDifference) -> str:
  if size is None:
    return ""
  chance = power(size / 100, found)
  if math.isnan(chance):
    return "not known"
  word = "yes" if chance >= ENOUGH else "no"
  return f"{word} ({numbers.percent(chance)})"
