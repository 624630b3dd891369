"""Command line of a benchmark with several rows, each a module of its own."""

import argparse
import importlib
import json
import os
import pathlib
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import jax

from agentrl_jax.errors import ConfigError
from launch.reports import measured
from launch.reports.measured import Observation


def run(
  description: str, family: str, rows: Sequence[str], named: Sequence[str] = ()
) -> None:
  """Measures the rows named on the command line, or all of `rows`, one by one.

  A row is `bench.<family>.<row>.measure(pairs, pythons)`. Rows in `named` need
  more than this repository has, and are measured only where they are named.
  """
  jax.config.update("jax_platforms", "cpu")
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("rows", nargs="*", choices=[[], *rows, *named])
  parser.add_argument("--pairs", type=int, default=5)
  parser.add_argument(
    "--peer_python", type=pathlib.Path, default=".venv-peers/bin/python"
  )
  parser.add_argument(
    "--tunix_python", type=pathlib.Path, default=".venv-tunix/bin/python"
  )
  parser.add_argument(
    "--llama_python", type=pathlib.Path, default=".venv-llama/bin/python"
  )
  parser.add_argument("--output", type=measured.output, help="a CSV, added to")
  options = parser.parse_args()
  pythons = {
    "torch": options.peer_python,
    "tunix": options.tunix_python,
    "llama_cpp": options.llama_python,
  }
  for python in pythons.values():
    if not python.exists():
      sys.stderr.write(
        f"{python} is not there, so peers in it are left out; `make bench` "
        "makes it\n"
      )
  quoted = read_quoted()
  kept: list[Observation] = []
  for row in options.rows or rows:
    module = importlib.import_module(f"bench.{family}.{row}")
    found = module.measure(options.pairs, pythons)
    about = {
      "row": row,
      "jax": jax.__version__,
      "pairs": options.pairs,
      "huge_pages": os.environ.get("GLIBC_TUNABLES", ""),
    }
    sys.stdout.write(json.dumps(about | found, indent=2) + "\n")
    sys.stdout.flush()
    benchmark, machine = f"{family}.{row}", processor()
    kept += (
      {
        "benchmark": benchmark,
        **each,
        **quoted.get((benchmark, each["what"]), {}),
        "machine": machine,
      }
      for each in flat(found)
    )
    if options.output:
      measured.keep(options.output, kept)


def read_quoted() -> dict[tuple[str, str], dict[str, str]]:
  """Returns the table, row, column and goal of each value that a page shows.

  By the benchmark and the place in its JSON; bench/README.md is the page.
  """
  quoted = {}
  for line in measured.read(pathlib.Path(__file__).with_name("quoted.csv")):
    key = line.pop("benchmark"), line.pop("what")
    if key in quoted:
      raise ConfigError(f"bench/quoted.csv has {' '.join(key)} twice")
    quoted[key] = line
  return quoted


def flat(found: object, what: str = "") -> Iterator[dict[str, object]]:
  """Yields each value of a row's JSON, with its range where it has one.

  Of a list of numbers that is its median, lowest and highest.
  """
  if isinstance(found, Mapping) and "median" in found:
    low, high = found["lowest"], found["highest"]
    yield {"what": what, "value": found["median"], "low": low, "high": high}
  elif isinstance(found, Mapping):
    for name, value in found.items():
      yield from flat(value, f"{what}/{name}" if what else f"{name}")
  elif _is_list_of(Mapping, found):
    for name in found[0]:
      yield from flat([each[name] for each in found], f"{what}/{name}")
  elif _is_list_of(int | float, found):
    low, high = min(found), max(found)
    middle = statistics.median(found)
    yield {"what": what, "value": middle, "low": low, "high": high}
  else:
    yield {"what": what, "value": found, "low": "", "high": ""}


def _is_list_of(kind, found: object) -> TypeGuard[list]:
  return (
    isinstance(found, list)
    and bool(found)
    and all(isinstance(each, kind) for each in found)
  )


def processor() -> str:
  """Returns the cores that this process may use, and the processor's name."""
  cpus = pathlib.Path("/proc/cpuinfo")
  text = cpus.read_text("utf-8") if cpus.exists() else ""
  names = re.findall(r"model name\s*: (.+)", text) or ["an unknown processor"]
  vectors = " (AVX-512)" if re.search(r"\bavx512f\b", text) else ""
  return f"{len(os.sched_getaffinity(0))} cores of {names[0]}{vectors}"
