r"""Predicts whether a config fits a TPU slice, and how fast it runs there.

  python -m launch.plan --config=configs/pod.py:qwen2.5-14b \
    --topology=v5p-64 --rollout_topology=v5p-8
  python -m launch.plan --config=configs/pod.py:qwen3-8b --topology=v6e:8x8 \
    --rollout_topology=v6e-8 --search=6 --config.mesh.fsdp=64
  python -m launch.plan --config=configs/pod.py:qwen3-8b --topology=v6e-32 \
    --rollout_topology=v6e-8 --search=2 --lengths=2048,8192,32768,131072
  python -m launch.plan --config=configs/pod.py:qwen2.5-14b --system \
    --topology=v5p-64 --rollout_topology=v5p-8 --rollout_slices=8 \
    --prompt=1024 --turns=896 --num_answers=5 --answer_tokens=100
  python -m launch.plan --config=configs/finetune.py:FOLDER --device=rtx4090

Compiles the learner's update, prefill and decode of exactly that config for
exactly those chips, on any machine, and analyses the compiled programs. Ends
with status 1 and a sentence if something does not fit. With --device one
machine is planned by arithmetic. See docs/plan.md.
"""

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator

import ml_collections
from absl import flags
from rich.console import Console
from rich.text import Text

from agentrl_jax.errors import ConfigError
from launch.config import command_line
from launch.config.settings import Settings, read_settings
from launch.planning import length_plans, report
from launch.planning.advice.adviser import Adviser, refusal
from launch.planning.chips import parse_slice
from launch.planning.roofline import Attempts
from launch.planning.search import (
  Candidate,
  Largest,
  exchanged,
  most_rows,
  most_slots,
  search,
)
from launch.planning.study import (
  ROLES,
  Deployment,
  Planner,
  read_attempts,
  without_devices,
)
from launch.planning.system import machine
from launch.planning.system import report as system_report
from launch.planning.system.measured import read_measured, require_same_work
from launch.planning.system.prices import read_prices
from launch.planning.system.whole_run import (
  Plan,
  Request,
  plan_measured,
  plan_whole_run,
  require_slices,
)
from launch.planning.system.workload import read_workload
from launch.processes.terminal import plain_console
from launch.storage.load_params import with_teacher
from launch.storage.run_config import run_config

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
_ROLES = flags.DEFINE_list("roles", list(ROLES), f"Of {', '.join(ROLES)}.")
_PROMPT = flags.DEFINE_integer(
  "prompt", None, "Mean tokens that a group's attempts share from the start."
)
_TURNS = flags.DEFINE_integer(
  "turns",
  None,
  "Mean tokens of an attempt after --prompt; nothing: rows are full, with "
  "attempts of episode.max_tokens that share nothing.",
)
_ATTEMPTS = flags.DEFINE_integer(
  "attempts", None, "Attempts that share --prompt; nothing: group.size."
)
_MEAN_TOKENS = flags.DEFINE_integer(
  "mean_tokens",
  None,
  "Mean tokens of the answers that run at once, with their prompts; nothing: "
  "every slot has engine.context.",
)
flags.DEFINE_string("segment", None, "Is now --prompt and --turns.")
_LARGEST = flags.DEFINE_bool(
  "largest", True, "Look for the largest batches; compiles up to ten times."
)
_QUICK = flags.DEFINE_bool(
  "quick",
  False,
  "Compile with the least effort, in half of the time or less: the same bytes "
  "between chips, memory within 2 %, on v5e no overlap.",
)
_SEARCH = flags.DEFINE_integer(
  "search", 0, "So many of the most promising meshes are compiled and ranked."
)
_COMPILE_TIMEOUT = flags.DEFINE_float(
  "compile_timeout_s",
  1800.0,
  "Seconds after which the compiler of a program is taken for hanging.",
  lower_bound=1.0,
  upper_bound=1e6,
)
_LENGTHS = flags.DEFINE_list(
  "lengths",
  None,
  "Tokens of a row, with a comma between two: --search finds a mesh for each.",
)
_SECONDS = flags.DEFINE_float(
  "seconds",
  600.0,
  "Seconds in which changes are compiled to find some that fit; 0: none.",
  lower_bound=0.0,
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON in place of tables.")
_SYSTEM = flags.DEFINE_bool(
  "system", False, "Predict the whole run: who waits for whom, and its price."
)
_SERVERS = flags.DEFINE_integer(
  "rollout_slices", 1, "Rollout servers, each on a --rollout_topology."
)
_ANSWERS = flags.DEFINE_float(
  "num_answers", None, "Mean answers of an episode, for --system."
)
_ANSWER_TOKENS = flags.DEFINE_float(
  "answer_tokens", None, "Mean tokens of an answer, for --system."
)
_ENVIRONMENT_S = flags.DEFINE_float(
  "environment_s", 0.0, "Mean seconds of the environment for each answer."
)
_SPREAD = flags.DEFINE_float(
  "spread", 0.5, "Standard deviation of an episode's work over its mean."
)
_UTILISATION = flags.DEFINE_float(
  "utilisation", 0.5, "Share of their bounds that programs reach."
)
_CHIPS = flags.DEFINE_integer(
  "chips", 0, "Split so many chips between learner and servers, and rank."
)
_PRICE = flags.DEFINE_list(
  "price", [], "Dollars for an hour of a chip: v5p=4.2,v6e=2.7."
)
_DEVICE = flags.DEFINE_enum(
  "device", None, machine.DEVICES, "Plan one machine; cpu is this one."
)
_MEASURED = flags.DEFINE_string(
  "measured", None, "The folder of a run, whose rates replace the bounds."
)
# Flags that count with --system alone; of these, with --measured, the first.
_OF_SYSTEM = (
  "rollout_slices",
  "num_answers",
  "answer_tokens",
  "environment_s",
  "spread",
  "utilisation",
  "chips",
  "price",
)
_OF_PROGRAMS = (
  "rollout_topology",
  "roles",
  "prompt",
  "turns",
  "attempts",
  "largest",
  "search",
  "lengths",
)
# Flags of the plan of one length, that --lengths leaves out.
_OF_ONE_LENGTH = (
  "roles",
  "prompt",
  "turns",
  "attempts",
  "mean_tokens",
  "largest",
  "seconds",
  "system",
  "measured",
  *_OF_SYSTEM,
)
_NOT_OF_DEVICE = (
  "rollout_topology",
  "roles",
  "mean_tokens",
  "largest",
  "quick",
  "search",
  "lengths",
  "seconds",
  "system",
  *_OF_SYSTEM,
)
flags.mark_flags_as_required(["config"])
flags.register_multi_flags_validator(
  ["topology", "measured", "device"],
  lambda given: sum(map(bool, given.values())) == 1,
  "give --topology, the learner's slice, --device, one machine, or --measured, "
  "the folder of a run; and no two of them",
)
flags.register_validator(
  "roles",
  lambda given: bool(given) and set(given) <= set(ROLES),
  f"are some of {', '.join(ROLES)}, with a comma between two",
)
flags.register_validator(
  "segment",
  lambda given: given is None,
  "is now --prompt, the mean tokens that the attempts of a group share from "
  "the start, and --turns, the mean tokens of an attempt after them; --turns "
  "alone is what --segment was",
)


def plan(
  config: ml_collections.ConfigDict,
  settings: Settings,
  deployment: Deployment,
  request: Request | None,
) -> str:
  """Prints the plan; returns a sentence about what does not fit, or "".

  With a `request`, the whole run is predicted if all its programs fit.
  """
  tables = plain_console(stderr=_JSON.value, width=110)
  planner = Planner(deployment)
  adviser = Adviser(config, deployment, _ROLES.value, seconds=_SECONDS.value)
  for sentence in adviser.excluded():
    tables.print(sentence, soft_wrap=True, markup=False, highlight=False)
  whole: Plan | None = None
  with _telling() as tell:
    judged = planner.study(settings, _ROLES.value, tell=tell)
    ranked: list[Candidate] = []
    if _SEARCH.value:
      ranked = search(
        planner,
        settings,
        num_compiled=_SEARCH.value,
        own=next((j for j in judged if j.name == "gradient"), None),
        tell=tell,
      )
    excluded = {j.name for j in judged if j.is_excluded}
    largest = _largest(planner, settings, excluded, tell)
    if request is not None and all(j.fits for j in judged):
      whole = plan_whole_run(settings, deployment, judged, request, tell=tell)
  report.show(tables, judged, {"gradient": exchanged(settings)})
  if ranked:
    report.show_search(tables, ranked)
  report.show_largest(tables, largest)
  with _telling() as tell:
    advice = adviser.advise(judged, tell) or adviser.share_prompts(judged, tell)
  report.show_advice(tables, advice, adviser)
  if whole is not None:
    _show_whole(tables, whole)
  if _JSON.value:
    found = report.as_json(judged, largest, ranked, advice, adviser.left_out)
    if whole is not None:
      found |= system_report.as_json(whole.systems, whole.splits)
    plain_console().print_json(json.dumps(found))
  return refusal(judged, advice)


def plan_from_run(settings: Settings, run: pathlib.Path) -> None:
  """Prints the whole run at the rates of another one, and what that had."""
  tables = plain_console(stderr=_JSON.value, width=110)
  found = read_measured(run, settings, num_servers=_SERVERS.value)
  require_same_work(settings, read_settings(run_config(run)))
  whole = plan_measured(settings, found)
  _show_whole(tables, whole)
  (system,) = whole.systems.values()
  system_report.show_measured(tables, found, system)
  if _JSON.value:
    values = system_report.as_json(whole.systems, measured=found)
    plain_console().print_json(json.dumps(values))


def plan_device(
  config: ml_collections.ConfigDict, settings: Settings, name: str
) -> str:
  """Prints the plan of one machine; returns a sentence, or "", likewise."""
  share = _UTILISATION.value
  device = machine.machine_of(name)
  plan = machine.estimate(settings, device, _attempts(settings), share)
  keys = {} if plan.left >= 0 else machine.advise(config, device, share)
  machine.show(plain_console(stderr=_JSON.value, width=110), plan, share)
  if _JSON.value:
    plain_console().print_json(json.dumps(machine.as_json(plan, keys)))
  return machine.refusal(plan, keys)


def plan_lengths(
  settings: Settings, deployment: Deployment, lengths: tuple[int, ...]
) -> str:
  """Prints the best mesh of each length; returns a sentence, or "", likewise.

  `lengths` are tokens of a row.
  """
  tables = plain_console(stderr=_JSON.value, width=110)
  with _telling() as tell:
    plans = length_plans.plan_lengths(
      Planner(deployment),
      settings,
      lengths,
      num_compiled=_SEARCH.value,
      tell=tell,
    )
  report.show_lengths(tables, plans)
  if _JSON.value:
    plain_console().print_json(json.dumps(report.lengths_as_json(plans)))
  return length_plans.refusal(plans, deployment.learner)


def _show_whole(tables: Console, whole: Plan) -> None:
  system_report.show(
    tables, whole.systems, slices=whole.slices, notes=whole.notes
  )
  if whole.splits:
    system_report.show_split(tables, whole.splits, _CHIPS.value)


def _largest(
  planner: Planner,
  settings: Settings,
  excluded: Collection[str],
  tell: Callable[[str], None],
) -> list[Largest]:
  """Compiles larger batches, except of `excluded` programs."""
  found: list[Largest] = []
  if not _LARGEST.value:
    return found
  if "learner" in _ROLES.value and "gradient" not in excluded:
    tell("larger micro-batches")
    found.append(most_rows(planner, settings))
  if "rollout" in _ROLES.value and "decode" not in excluded:
    tell("more slots")
    found.append(most_slots(planner, settings))
  return found


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
  if _MEASURED.value:
    plan_from_run(settings, pathlib.Path(_MEASURED.value))
    return
  if _DEVICE.value:
    if refused := plan_device(CONFIG.value, settings, _DEVICE.value):
      sys.exit(refused)
    return
  rollout = _ROLLOUT.value
  deployment = Deployment(
    learner=parse_slice(_TOPOLOGY.value or ""),
    rollout=parse_slice(rollout) if rollout else None,
    attempts=_attempts(settings),
    mean_tokens=_MEAN_TOKENS.value,
    is_quick=_QUICK.value,
    compile_timeout_s=_COMPILE_TIMEOUT.value,
  )
  if _LENGTHS.value is None:
    request = _request(settings, deployment) if _SYSTEM.value else None
    refused = plan(CONFIG.value, settings, deployment, request)
  else:
    lengths = length_plans.read_lengths(_LENGTHS.value)
    refused = plan_lengths(settings, deployment, lengths)
  if refused:
    sys.exit(refused)


def _attempts(settings: Settings) -> Attempts | None:
  return read_attempts(
    settings, prompt=_PROMPT.value, turns=_TURNS.value, attempts=_ATTEMPTS.value
  )


def _refuse_idle_flags() -> None:
  """Raises `ConfigError` for flags that would change nothing."""
  if _DEVICE.value:
    reason = "--device counts one machine by arithmetic, and compiles nothing"
    idle = [name for name in _NOT_OF_DEVICE if name != "utilisation"]
  elif _LENGTHS.value is not None:
    if not _SEARCH.value:
      raise ConfigError(
        "--lengths needs meshes to compare: add --search=3, the number of "
        "meshes that are compiled for each length beside that of the config"
      )
    reason = "--lengths plans the learner alone, with full rows of each length"
    idle = list(_OF_ONE_LENGTH)
  elif _MEASURED.value:
    reason = "a run has rates of its own, and --measured asks for no slices"
    idle = [*_OF_PROGRAMS, *_OF_SYSTEM[1:]]
  elif not _SYSTEM.value:
    reason = "they are of the plan of the whole run: add --system"
    idle = list(_OF_SYSTEM)
  else:
    return
  if given := [f"--{name}" for name in idle if flags.FLAGS[name].present]:
    raise ConfigError(f"{', '.join(given)} would change nothing: {reason}")


def _request(settings: Settings, deployment: Deployment) -> Request:
  """Returns what the flags say about the whole run, checked."""
  if missing := set(ROLES) - set(_ROLES.value):
    raise ConfigError(
      f"--system needs the rates of both sides, and --roles={_ROLES.value} "
      f"leaves out {', '.join(missing)}: leave --roles away"
    )
  request = Request(
    workload=read_workload(
      settings,
      deployment.attempts,
      num_answers=_ANSWERS.value,
      answer_tokens=_ANSWER_TOKENS.value,
      environment_s=_ENVIRONMENT_S.value,
      spread=_SPREAD.value,
    ),
    utilisation=_UTILISATION.value,
    num_servers=_SERVERS.value,
    num_chips=_CHIPS.value,
    prices=read_prices(_PRICE.value),
  )
  require_slices(deployment, request)
  return request


if __name__ == "__main__":
  command_line.run(main)
