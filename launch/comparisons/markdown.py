"""Tables of a comparison as Markdown, for pages that are kept.

A page has a block per table, which one command makes again from the numbers
that are kept beside it; a test compares them:

  <!-- finals: evidence/agentrl.csv rl greedy -->
  <!-- end -->
"""

import pathlib
import re

from agentrl_jax.errors import ConfigError
from launch.comparisons.finals import Finals, finals
from launch.comparisons.runs import read_arms
from launch.reports import numbers

_BLOCK = re.compile(
  r"(<!-- finals: (\S+) (\S+) (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL
)


def filled(page: str, folder: pathlib.Path) -> str:
  """Returns the page with all blocks made again; paths are below `folder`."""

  def table(block: re.Match[str]) -> str:
    begin, path, stage, mode, _, end = block.groups()
    found = finals(read_arms([folder / path]), stage, mode)
    if found is None:
      raise ConfigError(f"{path} has no evaluation of {stage}, {mode}")
    return f"{begin}{markdown(found)}{end}"

  return _BLOCK.sub(table, page)


def markdown(of: Finals) -> str:
  """Returns levels and differences as a table."""
  names = of.columns
  lines = [
    f"| {numbers.stage_name(of.stage)}, {of.mode} | {' | '.join(names)} |",
    f"|---|{'---|' * len(names)}",
  ]
  for level in of.levels:
    cells = [
      f"{100 * e.mean:.1f} ({numbers.interval(e.low, e.high)})" if e else ""
      for e in map(level.tasks.get, names)
    ]
    lines.append(
      f"| {level.arm}, {level.num_seeds} seeds | {' | '.join(cells)} |"
    )
  for change in of.changes:
    cells = [
      f"{numbers.points(d.mean)} ({numbers.signed_interval(d.low, d.high)}; "
      f"{numbers.p_value(d.p)})"
      if d
      else ""
      for d in map(change.tasks.get, names)
    ]
    lines.append(f"| {change.arm} − {of.baseline} | {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"
