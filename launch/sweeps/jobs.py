"""Renders a sweep as jobs: one run on a cluster, or one slice, per cell."""

import pathlib
import re
import shlex
import subprocess
from collections.abc import Sequence

from agentrl_jax.errors import ConfigError
from launch.reports.facts import ROOT
from launch.sweeps.plan import Cell, SweepPlan

RENDERERS = {
  "jobset": ROOT / "launch" / "gke" / "render.sh",
  "queued": ROOT / "launch" / "tpu_run.sh",
}
_LIMIT_S = 60.0
_NAME = re.compile(
  r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
)  # as launch/tpu/options.sh


def render(
  plan: SweepPlan, name: str, kind: str, options: Sequence[str]
) -> list[str]:
  """Returns a text per cell: manifests, or the command of queued resources.

  `options` are those of the renderer, such as --learner=v5p-8. The cells share
  no stages: each is a run by itself, in the workdir of the options.
  """
  if kind not in RENDERERS:
    raise ConfigError(f"--render={kind} must be one of {', '.join(RENDERERS)}")
  _require_names(name, plan.cells)
  commands = [
    [
      str(RENDERERS[kind].relative_to(ROOT)),
      f"--name={job_name(name, cell)}",
      *options,
      "--",
      f"--config={plan.ablation}:{cell.arm}",
      *plan.overrides,
      f"--config.seed={cell.seed}",
    ]
    for cell in plan.cells
  ]
  if kind == "queued":
    return [shlex.join(command) for command in commands]
  return [_printed(command) for command in commands]


def job_name(name: str, cell: Cell) -> str:
  """Returns a name that Kubernetes and the cloud accept."""
  return f"{name}-{cell.name}".replace("_", "-").lower()


def _require_names(name: str, cells: Sequence[Cell]) -> None:
  """Raises `ConfigError` unless each cell's job has a name of its own."""
  owners: dict[str, str] = {}
  for cell in cells:
    job = job_name(name, cell)
    if not _NAME.fullmatch(job):
      raise ConfigError(
        f"the job of {cell.name} would be called {job!r}: names of jobs have "
        "at most 40 lower-case letters, digits and dashes, and begin with a "
        "letter; rename the ablation's file, or the arm"
      )
    if owners.setdefault(job, cell.name) != cell.name:
      raise ConfigError(
        f"the jobs of {owners[job]} and {cell.name} would both be called "
        f"{job!r}, since names of jobs have no capitals and no underscores: "
        "rename one of the arms"
      )


def _printed(command: Sequence[str]) -> str:
  done = subprocess.run(
    command,
    cwd=pathlib.Path(ROOT),
    capture_output=True,
    text=True,
    timeout=_LIMIT_S,
  )
  if done.returncode:
    raise ConfigError(done.stderr.strip() or f"{command[0]} failed")
  return done.stdout
