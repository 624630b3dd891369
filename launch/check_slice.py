"""Runs the tests marked `accelerator` on a TPU slice, and says what failed.

  python -m launch.check_slice --topology=v5e-8

`launch/tpu_run.sh --check` runs it on a new slice, from a checkout. Each file
of tests has a process of its own, since devices belong to one at a time: one
that aborts or hangs is a line of the report. Writes report.json and report.txt
into --report after each file. See docs/tpu.md.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from absl import flags

from agentrl_jax.errors import ConfigError
from launch.config import command_line
from launch.processes.terminal import plain_console

_TOPOLOGY = flags.DEFINE_string(
  "topology", "", "The slice, such as v5e-8, whose plan is compared."
)
_FOLDER = flags.DEFINE_string(
  "report", "~/agentrl/check", "The folder of the report."
)
_SECONDS = flags.DEFINE_float(
  "seconds",
  600.0,
  "Seconds for all tests; those that have no time left fail.",
  lower_bound=1.0,
  upper_bound=1e5,
)
_ONLY = flags.DEFINE_string("only", "", "As pytest's -k: tests of these names.")
_TESTS = pathlib.Path(__file__).parents[1] / "tests"
_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax")
_MOST_TEXT = 4000  # characters of an error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """One test, or a file of tests whose process died."""

  name: str
  error: str  # "": it passed
  seconds: float
  figures: Mapping[str, str]

  @property
  def line(self) -> str:
    """Says in a line how the test went."""
    verdict = "FAILED" if self.error else "passed"
    figures = ", ".join(f"{k}={v}" for k, v in self.figures.items())
    said = self.error.partition("\n")[0] or figures
    return f"{verdict} {self.name} {self.seconds:.1f} s  {said}"


def run_tests(file: pathlib.Path, folder: pathlib.Path, left: float) -> Any:
  """Runs the accelerator's tests of a file; returns their outcomes."""
  report, started = folder / "pytest.xml", time.monotonic()
  report.unlink(missing_ok=True)
  error = ""
  try:
    done = subprocess.run(
      [
        *(sys.executable, "-m", "pytest", "-q", str(file), "-k", _ONLY.value),
        *("-m", "accelerator", "-o", "addopts=", "-o", "filterwarnings="),
        f"--junitxml={report}",
      ],
      env={"XLA_FLAGS": "", **os.environ, "AGENTRL_SLICE": _TOPOLOGY.value},
      cwd=_TESTS.parent,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=max(left, 0.0),
      check=False,
    )
    if not report.exists():
      error = f"ended with status {done.returncode}: {done.stdout}"
  except subprocess.TimeoutExpired as late:
    error = f"did not end in {left:.0f} s: {late.stdout!r}"
  if error:
    seconds, text = time.monotonic() - started, error[-_MOST_TEXT:]
    return [Outcome(name=file.stem, error=text, seconds=seconds, figures={})]
  return [_outcome(c) for c in ElementTree.parse(report).iter("testcase")]


def _outcome(case: ElementTree.Element) -> Outcome:
  """Reads a test of pytest's report."""
  broken = [*case.iter("failure"), *case.iter("error")]
  figures = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
  for skipped in case.iter("skipped"):
    figures["skipped"] = skipped.attrib["message"]
  return Outcome(
    name=case.attrib["name"],
    error="\n".join(
      f"{b.attrib['message']}\n{b.text}"[:_MOST_TEXT] for b in broken
    ),
    seconds=float(case.attrib["time"]),
    figures=figures,
  )


def write_report(
  folder: pathlib.Path, outcomes: Sequence[Outcome], about: Mapping[str, Any]
) -> None:
  """Writes both files of the report."""
  failed = [each.name for each in outcomes if each.error]
  whole = {
    "passed": bool(outcomes) and not failed,
    "failed": failed,
    **about,
    "tests": [dataclasses.asdict(each) for each in outcomes],
  }
  lines = [
    f"{len(failed)} of {len(outcomes)} tests failed",
    *(f"{name}: {value}" for name, value in about.items()),
    *(each.line for each in outcomes),
  ]
  for name, text in (
    ("report.json", json.dumps(whole, indent=2)),
    ("report.txt", "\n".join(lines) + "\n"),
  ):
    new = folder / f"{name}.new"
    new.write_text(text)
    new.rename(folder / name)


def main() -> None:
  """Runs the tests, and prints a line for each."""
  ends_at = time.monotonic() + _SECONDS.value
  folder = pathlib.Path(_FOLDER.value).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  files = [
    file
    for file in sorted(_TESTS.rglob("*_test.py"))
    if "pytest.mark.accelerator" in file.read_text()
  ]
  if not files:
    raise ConfigError(f"{_TESTS} has no tests: run this from a checkout")
  about = {
    "topology": _TOPOLOGY.value,
    "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "packages": {
      each.name: each.version
      for each in importlib.metadata.distributions()
      if each.name in _PACKAGES
    },
  }
  outcomes: list[Outcome] = []
  console = plain_console(soft_wrap=True)
  for file in files:
    for found in run_tests(file, folder, ends_at - time.monotonic()):
      outcomes.append(found)
      console.print(found.line)
    write_report(folder, outcomes, about)
  console.print(f"the report is in {folder}/report.json")


if __name__ == "__main__":
  command_line.run(main)
