"""Command line of a benchmark with several rows, each a module of its own."""

import argparse
import importlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Sequence

import jax


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
  for row in options.rows or rows:
    module = importlib.import_module(f"bench.{family}.{row}")
    found = module.measure(options.pairs, pythons)
    about = {
      "row": row,
      "machine": processor(),
      "jax": jax.__version__,
      "pairs": options.pairs,
      "huge_pages": os.environ.get("GLIBC_TUNABLES", ""),
    }
    sys.stdout.write(json.dumps(about | found, indent=2) + "\n")
    sys.stdout.flush()


def processor() -> str:
  """Returns the cores that this process may use, and the processor's name."""
  cpus = pathlib.Path("/proc/cpuinfo")
  text = cpus.read_text("utf-8") if cpus.exists() else ""
  names = re.findall(r"model name\s*: (.+)", text) or ["an unknown processor"]
  vectors = " (AVX-512)" if re.search(r"\bavx512f\b", text) else ""
  return f"{len(os.sched_getaffinity(0))} cores of {names[0]}{vectors}"
