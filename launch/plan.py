r"""Predicts whether a config fits a TPU slice, and how fast it runs there.

  python -m launch.plan --config=configs/pod.py:qwen2.5-14b \
    --topology=v5p-64 --rollout_topology=v5p-8 --rollout_slices=8
  python -m launch.plan --config=configs/finetune.py:FOLDER --device=rtx4090

Compiles the learner's update, prefill and decode of exactly that config for
exactly those chips, on any machine, and analyses the compiled programs. Ends
with status 1 and a sentence if something does not fit. With --device one
machine is planned by arithmetic. See docs/tpu.md.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from absl import flags
from rich.console import Console
from rich.text import Text

from agentrl_jax.errors import ConfigError
from launch.config import command_line
from launch.config.settings import Settings, read_settings
from launch.planning import advice, machine, report
from launch.planning.chips import parse_slice
from launch.planning.formulas import estimates, exchanged
from launch.planning.roofline import Attempts
from launch.planning.step import (
  Rates,
  rates_of_programs,
  read_attempts,
  step_time,
)
from launch.planning.study import ROLES, Deployment, Planner, without_devices
from launch.processes.terminal import plain_console
from launch.storage.load_params import with_teacher

CONFIG = command_line.define_config()

_TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "The learner's slice: v5p:2x4x4, or v5p-64 as rented; 2xv5p-64 is two.",
)
_ROLLOUT = flags.DEFINE_string(
  "rollout_topology",
  "",
  "The slice of one rollout server; nothing: the learner's process answers.",
)
_SERVERS = flags.DEFINE_integer(
  "rollout_slices",
  1,
  "Rollout servers, each on a --rollout_topology.",
  lower_bound=1,
)
_ROLES = flags.DEFINE_list("roles", list(ROLES), f"Of {', '.join(ROLES)}.")
_PROMPT = flags.DEFINE_integer(
  "prompt", 0, "Mean tokens that a group's attempts share from the start."
)
_TURNS = flags.DEFINE_integer(
  "turns",
  None,
  "Mean tokens of an attempt after --prompt; nothing: rows are full, with "
  "attempts of episode.max_tokens that share nothing.",
)
_SAMPLED = flags.DEFINE_integer(
  "sampled", None, "Of --turns, those that the policy samples; nothing: all."
)
_QUICK = flags.DEFINE_bool(
  "quick",
  False,
  "Compile with the least effort, in half of the time or less: the same bytes "
  "between chips, memory within 2 %, on v5e no overlap. What ends the compiler "
  "is compiled with full effort.",
)
_UTILISATION = flags.DEFINE_float(
  "utilisation",
  0.5,
  "Share of their bounds that programs reach, for the time of a step.",
  lower_bound=0.01,
  upper_bound=1.0,
)
_DEVICE = flags.DEFINE_enum(
  "device", None, machine.DEVICES, "Plan one machine; cpu is this one."
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON in place of tables.")
_OF_SLICES = ("rollout_topology", "rollout_slices", "roles", "quick")
_MESHES = 4  # that are shown
flags.mark_flags_as_required(["config"])
flags.register_multi_flags_validator(
  ["topology", "device"],
  lambda given: sum(map(bool, given.values())) == 1,
  "give either --topology, the learner's slice, or --device, one machine",
)
flags.register_validator(
  "roles",
  lambda given: bool(given) and set(given) <= set(ROLES),
  f"are some of {', '.join(ROLES)}, with a comma between two",
)


def plan(
  config: ml_collections.ConfigDict, settings: Settings, deployment: Deployment
) -> str:
  """Prints the plan; returns a sentence about what does not fit, or ""."""
  tables, roles = plain_console(stderr=_JSON.value, width=110), _ROLES.value
  planner = Planner(deployment)
  with _telling() as tell:
    judged = planner.study(settings, roles, tell=tell)
  report.show(tables, judged, {"gradient": exchanged(settings)})
  if "learner" in roles:
    found = estimates(settings, deployment.learner, deployment.attempts)
    report.show_meshes(
      tables,
      [
        e for n, e in enumerate(found) if n < _MESHES or e.mesh == settings.mesh
      ],
      settings.mesh,
    )
  changes = advice.advise(config, planner, judged)
  step = None
  if all(j.fits for j in judged):
    changes += advice.longer_rows(settings, deployment.attempts)
    if set(roles) == set(ROLES):
      rates = rates_of_programs(
        settings, judged, num_servers=_SERVERS.value, share=_UTILISATION.value
      )
      step = _show_step(tables, settings, deployment.attempts, rates)
  report.show_advice(tables, changes)
  _print_json({**report.as_json(judged, changes), "step": step})
  return advice.refusal(judged, changes)


def plan_device(
  config: ml_collections.ConfigDict, settings: Settings, name: str
) -> str:
  """Prints the plan of one machine; returns a sentence, or "", likewise."""
  tables, share = plain_console(stderr=_JSON.value), _UTILISATION.value
  attempts = _attempts(settings)
  found = machine.plan_machine(
    settings, machine.machine_of(name), attempts, share
  )
  machine.show(tables, found)
  step = _show_step(tables, settings, attempts, found.rates)
  change = machine.advise(config, found, share)
  _print_json(
    {
      "device": found.machine.name,
      "bytes": dict(found.parts),
      "bytes_left": found.left,
      "step": step,
      "advice": change and change.flags,
    }
  )
  return machine.refusal(found, change)


def _show_step(
  tables: Console, settings: Settings, attempts: Attempts | None, rates: Rates
) -> dict[str, Any]:
  step = step_time(
    settings,
    attempts,
    rates,
    sampled=_SAMPLED.value,
    is_shared=not _ROLLOUT.value,
  )
  report.show_step(tables, step, _UTILISATION.value)
  return {**dataclasses.asdict(step), "step_s": step.step_s}


def _print_json(values: Mapping[str, Any]) -> None:
  if _JSON.value:
    plain_console().print_json(json.dumps(values))


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
  """Returns a function that prints what is being compiled."""
  console = plain_console(stderr=True)
  with console.status("compiling") as status:

    def tell(name: str) -> None:
      status.update(Text(f"compiling {name}"))
      if not console.is_terminal:
        console.print(f"compiling {name}")

    yield tell


def main() -> None:
  """Plans as the flags say."""
  without_devices()
  _refuse_idle_flags()
  settings = with_teacher(read_settings(CONFIG.value))
  if _DEVICE.value:
    refused = plan_device(CONFIG.value, settings, _DEVICE.value)
  else:
    deployment = Deployment(
      learner=parse_slice(_TOPOLOGY.value or ""),
      rollout=parse_slice(_ROLLOUT.value) if _ROLLOUT.value else None,
      attempts=_attempts(settings),
      is_quick=_QUICK.value,
    )
    refused = plan(CONFIG.value, settings, deployment)
  if refused:
    sys.exit(refused)


def _attempts(settings: Settings) -> Attempts | None:
  return read_attempts(settings, prompt=_PROMPT.value, turns=_TURNS.value)


def _refuse_idle_flags() -> None:
  """Raises `ConfigError` for flags that would change nothing."""
  idle: Sequence[str] = ()
  reason = ""
  if _DEVICE.value:
    idle, reason = _OF_SLICES, "--device plans one machine by arithmetic"
  elif not _ROLLOUT.value:
    idle, reason = ("rollout_slices",), "--rollout_topology is not given"
  if given := [f"--{name}" for name in idle if flags.FLAGS[name].present]:
    raise ConfigError(f"{', '.join(given)} would change nothing: {reason}")


if __name__ == "__main__":
  command_line.run(main)
