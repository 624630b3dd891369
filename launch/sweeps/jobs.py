"""Renders a sweep as jobs: one run on a cluster, or one slice, per cell."""

import pathlib
import shlex
import subprocess
from collections.abc import Sequence

from agentrl_jax.errors import ConfigError
from launch.reports.facts import ROOT
from launch.sweeps.plan import Cell, Plan

RENDERERS = {
  "jobset": ROOT / "launch" / "gke" / "render.sh",
  "queued": ROOT / "launch" / "tpu_run.sh",
}
_LIMIT_S = 60.0


def render(
  plan: Plan, name: str, kind: str, options: Sequence[str]
) -> list[str]:
  """Returns a text per cell: manifests, or the command of queued resources.

  `options` are those of the renderer, such as --learner=v5p-8. The cells share
  no stages: each is a run by itself, in the workdir of the options.
  """
  if kind not in RENDERERS:
    raise ConfigError(f"--render={kind} must be one of {', '.join(RENDERERS)}")
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
