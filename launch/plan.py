r"""Predicts whether a config fits a TPU slice, and how fast it runs there.

  python -m launch.plan --config=configs/pod.py:qwen2.5-14b \
    --topology=v5p-64 --rollout_topology=v5p-8
  python -m launch.plan --config=configs/pod.py:qwen3-8b --topology=v6e:8x8 \
    --rollout_topology=v6e-8 --search=6 --config.mesh.fsdp=64

Compiles the learner's update, prefill and decode of exactly that config for
exactly those chips, on any machine, and analyses the compiled programs. Ends
with status 1 and a sentence if something does not fit. See docs/plan.md.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator

import jax
from absl import flags
from rich.console import Console

from launch import command_line
from launch.config.settings import Settings, read_settings
from launch.planning import report
from launch.planning.advice import advice, refusal, sharing_advice
from launch.planning.chips import parse_slice
from launch.planning.largest_batch import Largest, most_rows, most_slots
from launch.planning.search import Candidate, search
from launch.planning.study import ROLES, Deployment, Planner, read_attempts
from launch.shared_flags import CONFIG

_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "The learner's slice: v5p:2x4x4, or v5p-64 as rented."
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
_SEARCH = flags.DEFINE_integer(
  "search", 0, "So many of the most promising meshes are compiled and ranked."
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON in place of tables.")
flags.mark_flags_as_required(["config", "topology"])
flags.register_validator(
  "segment",
  lambda given: given is None,
  "is now --prompt, the mean tokens that the attempts of a group share from "
  "the start, and --turns, the mean tokens of an attempt after them; --turns "
  "alone is what --segment was",
)


def plan(settings: Settings, deployment: Deployment) -> str:
  """Prints the plan; returns a sentence about what does not fit, or ""."""
  tables = Console(stderr=_JSON.value, width=110)
  planner = Planner(deployment)
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
    largest = _largest(planner, settings, tell) if _LARGEST.value else []
  knobs = advice(settings, judged)
  refused = refusal(judged, knobs)
  report.show(tables, judged)
  if ranked:
    report.show_search(tables, ranked)
  report.show_largest(tables, largest)
  knobs = knobs or sharing_advice(settings, deployment.attempts)
  report.show_advice(tables, knobs)
  if _JSON.value:
    found = report.as_json(judged, largest, ranked, knobs)
    Console().print_json(json.dumps(found))
  return refused


def _largest(
  planner: Planner, settings: Settings, tell: Callable[[str], None]
) -> list[Largest]:
  found = []
  if "learner" in _ROLES.value:
    tell("larger micro-batches")
    found.append(most_rows(planner, settings))
  if "rollout" in _ROLES.value:
    tell("more slots")
    found.append(most_slots(planner, settings))
  return found


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
  """Returns a function that prints what is being compiled."""
  console = Console(stderr=True)
  with console.status("compiling") as status:

    def tell(name: str) -> None:
      status.update(f"compiling {name}")
      if not console.is_terminal:
        console.print(f"compiling {name}")

    yield tell


def main() -> None:
  """Plans as the flags say."""
  # Whatever chips are here, they are not asked.
  jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
  settings = read_settings(CONFIG.value)
  rollout = _ROLLOUT.value
  deployment = Deployment(
    learner=parse_slice(_TOPOLOGY.value or ""),
    rollout=parse_slice(rollout) if rollout else None,
    attempts=read_attempts(
      settings,
      prompt=_PROMPT.value,
      turns=_TURNS.value,
      attempts=_ATTEMPTS.value,
    ),
    mean_tokens=_MEAN_TOKENS.value,
  )
  if refused := plan(settings, deployment):
    sys.exit(refused)


if __name__ == "__main__":
  command_line.run(main)
