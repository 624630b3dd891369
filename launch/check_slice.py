"""Checks on a TPU slice what needs one, and writes a report to send back.

  python -m launch.check_slice --topology=v5e-8

`launch/tpu_run.sh --check` runs it on a new slice. Each check has processes of
its own: one that fails, hangs or aborts is a line of the report. Writes
report.json and report.txt into --report after each check. Where there is no TPU
kernels run in Pallas's interpreter, and times say nothing. See docs/tpu.md.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import flags

from agentrl_jax.errors import AgentRLError
from launch.config import command_line
from launch.processes.child import Child
from launch.processes.terminal import plain_console
from launch.slice_check import kernels, training
from launch.slice_check.killed_run import killed_run

_CONFIG = command_line.define_config()
_TOPOLOGY = flags.DEFINE_string(
  "topology", "", "The slice, such as v5e-8, to plan for; nothing: no plan."
)
_FOLDER = flags.DEFINE_string(
  "report", "~/agentrl/check", "The folder of the report."
)
_SECONDS = flags.DEFINE_float(
  "seconds",
  600.0,
  "Seconds for all checks; those that have no time left fail.",
  lower_bound=1.0,
  upper_bound=1e5,
)
_TOKENS = flags.DEFINE_integer(
  "tokens",
  1024,
  "Tokens of a row, for the comparison of kernels; a multiple of 128.",
  lower_bound=128,
)
_CHECKS = (
  "devices",
  "options",
  "attention",
  "cache_attention",
  "experts",
  "plan_update",
  "update",
  "plan_decode",
  "swap",
  "default_options",
  "kill",
)
_ONLY = flags.DEFINE_list("checks", list(_CHECKS), f"Of {', '.join(_CHECKS)}.")
flags.register_validator(
  "checks",
  lambda given: bool(given) and set(given) <= set(_CHECKS),
  f"are some of {', '.join(_CHECKS)}, with a comma between two",
)
flags.register_validator(
  "tokens", lambda given: given % 128 == 0, "is a multiple of 128"
)

_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax")
_MOST_TEXT = 4000  # characters of an error
# Of --seconds: the most that a check may take, and what is left for the last.
_MOST_SHARE, _LAST_SHARE = 0.25, 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
  """The result of one check."""

  name: str
  error: str  # "": it passed
  seconds: float
  figures: Mapping[str, Any]

  @property
  def line(self) -> str:
    """Says in a line how the check went."""
    verdict = "FAILED" if self.error else "passed"
    said = self.error.splitlines()[0] if self.error else _short(self.figures)
    return f"{verdict} {self.name:<16}{self.seconds:7.1f} s  {said}"


class SliceReport:
  """The outcomes so far, and the files that tell of them."""

  def __init__(self, folder: pathlib.Path, about: Mapping[str, Any]):
    self._folder, self._about = folder, about
    self.outcomes: list[CheckResult] = []

  def figures(self, name: str) -> dict[str, Any]:
    """Returns the figures of a check; {} if it failed or did not run."""
    by_name = {each.name: each.figures for each in self.outcomes}
    return dict(by_name.get(name, {}))

  def add(self, outcome: CheckResult) -> None:
    """Adds an outcome, and writes both files."""
    self.outcomes.append(outcome)
    failed = [each.name for each in self.outcomes if each.error]
    whole = {
      "passed": not failed,
      "failed": failed,
      **self._about,
      "checks": [dataclasses.asdict(each) for each in self.outcomes],
    }
    text = "\n".join(
      [
        f"{len(failed)} of {len(self.outcomes)} checks failed",
        *(f"{name}: {value}" for name, value in self._about.items()),
        *(each.line for each in self.outcomes),
        "Send report.json to the authors: it has all figures and errors.",
      ]
    )
    self._write("report.json", json.dumps(whole, indent=2))
    self._write("report.txt", text + "\n")

  def _write(self, name: str, text: str) -> None:
    new = self._folder / f"{name}.new"
    new.write_text(text)
    new.rename(self._folder / name)


def main() -> None:
  """Runs the checks that the flags name, and prints a line of each."""
  # Devices belong to one process at a time, and this one takes none.
  jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
  ends_at = time.monotonic() + _SECONDS.value
  folder = pathlib.Path(_FOLDER.value).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  for name in ("report.json", "report.txt"):  # of an earlier check
    (folder / name).unlink(missing_ok=True)
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
  report, console = SliceReport(folder, _about()), plain_console(soft_wrap=True)
  for name in _CHECKS:
    if name == "devices" or name in _ONLY.value:
      left = ends_at - time.monotonic()
      if name != "kill" and len(_ONLY.value) > 1:
        left -= _LAST_SHARE * _SECONDS.value * ("kill" in _ONLY.value)
        left = min(left, _MOST_SHARE * _SECONDS.value)
      outcome = outcome_of(name, report, folder, left)
      report.add(outcome)
      console.print(outcome.line, markup=False, highlight=False)
  console.print(f"the report is in {folder}/report.json")


def _about() -> dict[str, Any]:
  return {
    "topology": _TOPOLOGY.value,
    "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "python": platform.python_version(),
    "packages": {
      each.name: each.version
      for each in importlib.metadata.distributions()
      if each.name in _PACKAGES
    },
  }


def outcome_of(
  name: str, report: SliceReport, folder: pathlib.Path, left: float
) -> CheckResult:
  """Runs one check within `left` s; what it dies of is in the outcome."""
  started, error, figures = time.monotonic(), "", {}
  try:
    if left <= 0:
      raise AgentRLError("no time was left for it: see --seconds")
    figures = _run(name, report, folder, left)
  except Exception as raised:  # noqa: BLE001 - a line of the report
    error = f"{type(raised).__name__}: {raised}"[:_MOST_TEXT]
  return CheckResult(
    name=name, error=error, seconds=time.monotonic() - started, figures=figures
  )


def _run(
  name: str, report: SliceReport, folder: pathlib.Path, left: float
) -> dict[str, Any]:
  found = report.figures("devices")
  if name != "devices" and not found:
    raise AgentRLError("there are no devices: see the first check")
  if name == "kill":
    return killed_run(folder, found["num"], left)
  function, arguments = _function_of(name, report)
  child = Child()
  try:
    figures: dict[str, Any] = child.call(function, *arguments, deadline_s=left)
    return figures
  finally:
    child.close()


def _function_of(
  name: str, report: SliceReport
) -> tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]:
  """Returns what a child calls for a check, and its arguments."""
  tokens = _TOKENS.value
  of_kernels: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "devices": (kernels.devices, ()),
    "options": (kernels.options, ()),
    "attention": (kernels.attention, (tokens,)),
    "cache_attention": (kernels.cache_attention, (tokens,)),
    "experts": (kernels.expert_groups, (tokens,)),
  }
  if name in of_kernels:
    return of_kernels[name]
  config = _CONFIG.value or training.small_config()
  settings = training.fitted(config, report.figures("devices")["num"])
  if name.startswith("plan_"):
    if not _TOPOLOGY.value:
      raise AgentRLError("without --topology there is nothing to plan for")
    role = "learner" if name == "plan_update" else "rollout"
    return training.planned, (settings, _TOPOLOGY.value, role)
  if name == "default_options":
    return training.default_options, (settings,)
  function = training.updates if name == "update" else training.swap
  plan = "plan_update" if name == "update" else "plan_decode"
  return function, (settings, report.figures(plan))


def _short(figures: Mapping[str, Any]) -> str:
  """Writes figures in a line: numbers short, and tables within brackets."""

  def text(value: Any) -> str:
    if isinstance(value, Mapping):
      return f"({_short(value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

  return ", ".join(f"{name}={text(value)}" for name, value in figures.items())


if __name__ == "__main__":
  command_line.run(main)
