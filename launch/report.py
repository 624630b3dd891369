r"""Compares runs: arms of sweeps, or runs, finished or not.

  python -m launch.report sweeps/agentrl
  python -m launch.report runs/a-s0 runs/a-s1 runs/b-s0 runs/b-s1 \
    --output=comparison

Writes report.html, finals.csv and a picture of each plot. Runs that
differ in nothing but the seed are one arm; the first arm is what the others are
compared with, unless another is the --baseline. `--contrast=A,B` compares the
arms A and B, as A - B, in place of all arms with the first; it can be given
several times, and with --baseline both are compared:

  python -m launch.report sweeps/agentrl --baseline=again
  python -m launch.report sweeps/agentrl --contrast=no_task_norm,again
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.files import writing
from launch.comparisons.page import compare, verdicts, warnings, write
from launch.comparisons.runs import read_arms
from launch.config.command_line import REFUSED
from launch.processes.terminal import plain_console, print_what_can_be_printed

CONSOLE = plain_console(soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line, writes the page, and prints the verdicts."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.report", description=__doc__.partition("\n")[0]
  )
  parser.add_argument(
    "folder", nargs="+", help="a sweep, a run, or a finals.csv"
  )
  parser.add_argument(
    "--output", help="a folder; else `comparison` in the first one"
  )
  parser.add_argument("--title", help="else the names of the folders")
  parser.add_argument("--baseline", default="", help="else the first arm")
  parser.add_argument(
    "--contrast", action="append", default=[], help="A,B compares A - B"
  )
  given = parser.parse_args(arguments)
  print_what_can_be_printed()
  try:
    _compare(given)
  except AgentRLError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.exit(REFUSED)


def _compare(given: argparse.Namespace) -> None:
  folders = [pathlib.Path(name) for name in given.folder]
  beside = folders[0].parent if folders[0].is_file() else folders[0]
  output = pathlib.Path(given.output or beside / "comparison")
  title = given.title or ", ".join(path.resolve().name for path in folders)
  arms = read_arms(folders)
  comparison = compare(
    title,
    arms,
    baseline=given.baseline,
    contrasts=[_pair(text) for text in given.contrast],
  )
  with writing(output):
    write(comparison, output)
  for sentence in (*verdicts(comparison), *warnings(comparison.arms)):
    CONSOLE.print(sentence)
  CONSOLE.print(f"report: {output / 'report.html'}")


def _pair(text: str) -> tuple[str, str]:
  """Reads a `--contrast`. Raises `ConfigError` if it is not of two arms."""
  after, _, before = text.partition(",")
  if not after or not before or "," in before or after == before:
    raise ConfigError(
      f"--contrast={text} must name two arms, as in --contrast=A,B, which "
      "compares them as A - B"
    )
  return after, before


if __name__ == "__main__":
  main()
