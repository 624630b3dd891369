r"""Evaluates a policy on chosen tasks, without training anything.

  python -m launch.evaluate --config=configs/agentbench.py:DATA \
    --policy=expert --tasks=dbbench/dev,webshop/test
  python -m launch.evaluate --config=configs/quickstart.py \
    --policy=rl --run=runs/quickstart

Policies: `expert` is each environment's error-free expert, `imperfect` the
expert with the config's mistakes, `warm_start` and `rl` the last checkpoint of
that stage of `--run`. `scripted:NAME` is one of the environments' policies of a
few lines, which see messages and tools but no solution; `scripted` plays all of
them and the expert, and warns where one wins more than 30 %. Prints a table
and, with `--output`, writes it as JSON.

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=scripted --tasks=webshop/test,arithmetic/test
"""

import json
import pathlib
from collections.abc import Mapping, Sequence

import ml_collections
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.evaluation import TaskScore, draw_tasks, evaluate
from agentrl_jax.controller.player import (
  Player,
  PolicyPlayer,
  ScriptedPlayer,
  ScriptPlayer,
)
from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.data.records import Task
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.scripted import TRIVIAL_SUCCESS
from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.model.policy import Policy
from launch import command_line
from launch.config.chat import codec_of
from launch.config.settings import Settings, read_settings
from launch.reports.progress import StageProgress
from launch.run.environments import placed_environments
from launch.run.evaluation import scores_to_json
from launch.serving.service import serve
from launch.storage.load_params import load_params
from launch.storage.run_directory import RunDirectory

CONFIG = command_line.define_config()
RUN = command_line.define_run()

EXPERTS = ("expert", "imperfect")
STORED = ("warm_start", "rl")
SCRIPTED = "scripted"

_POLICY = flags.DEFINE_string(
  "policy",
  "expert",
  "Who plays: expert, imperfect, warm_start, rl, scripted or scripted:NAME.",
)
flags.register_validator(
  "policy",
  lambda word: word in (*EXPERTS, *STORED) or word.split(":")[0] == SCRIPTED,
  "is none of expert, imperfect, warm_start, rl, scripted and scripted:NAME",
)
_TASKS = flags.DEFINE_list(
  "tasks", None, "name/split, one or more; the test split of each if not given."
)
_GREEDY = flags.DEFINE_bool("greedy", True, "Greedy, or at the temperature.")
_OUTPUT = flags.DEFINE_string("output", None, "A JSON file for the scores.")
flags.mark_flag_as_required("config")


def score(
  settings: Settings,
  tasks: Sequence[Task],
  player: Player,
  plan: ml_collections.ConfigDict,
) -> dict[str, TaskScore]:
  """Plays every task once and scores by environment."""
  with (
    StageProgress("evaluation", len(tasks)) as show,
    ControllerThread() as loop,
  ):
    return loop.run(
      evaluate(
        player,
        tasks,
        concurrency=plan.concurrency,
        seed=settings.seed,
        retries=settings.retry,
        progress=lambda done, total, played: show.update(done, {}),
      ),
      plan.timeout_s,
    )


def choose_tasks(
  environments: Mapping[str, Environment],
  wanted: Sequence[str] | None,
  *,
  num_tasks: int,
  seed: int,
) -> list[Task]:
  """Draws up to `num_tasks` tasks of each `name/split` word."""
  chosen: list[Task] = []
  for word in wanted or [f"{name}/test" for name in environments]:
    name, slash, split = word.partition("/")
    if not slash or name not in environments:
      raise ConfigError(
        f"--tasks={word}{suggestion(name, environments)}: name an environment "
        "and a split, as in "
        + ", ".join(f"{name}/test" for name in environments)
      )
    chosen += draw_tasks(
      {name: environments[name]}, split=split, num_tasks=num_tasks, seed=seed
    )
  return chosen


def score_scripted(
  settings: Settings,
  environments: Mapping[str, Environment],
  tasks: Sequence[Task],
  plan: ml_collections.ConfigDict,
) -> dict[str, TaskScore]:
  """Scores every scripted policy and the expert, as `environment policy`."""
  scores: dict[str, TaskScore] = {}
  for name in dict.fromkeys(task.name for task in tasks):
    mine = [task for task in tasks if task.name == name]
    for policy in (*environments[name].scripted_policies(), "expert"):
      player = _script_player(settings, environments, policy)
      scores[f"{name} {policy}"] = score(settings, mine, player, plan)[name]
  return scores


def warnings_of(scores: Mapping[str, TaskScore]) -> list[str]:
  """Returns a sentence for each scripted policy that wins too often."""
  return [
    f"{name} wins {100 * s.success_rate:.1f} % of these tasks without "
    f"thinking: more than {100 * TRIVIAL_SUCCESS:.0f} %"
    for name, s in scores.items()
    if not name.endswith(" expert") and s.success_rate > TRIVIAL_SUCCESS
  ]


def _rates(score: TaskScore) -> tuple[str, str, str]:
  """Returns number of tasks, success and its interval, as cells of a table."""
  low, high = score.interval
  return (
    str(score.num_tasks),
    f"{100 * score.success_rate:.1f} %",
    f"{100 * low:.1f} to {100 * high:.1f}",
  )


def print_scripted(scores: Mapping[str, TaskScore], console: Console) -> None:
  """Prints the table of an environment's README, and warnings below it."""
  table = Table("policy", "n", "success", "95 %", box=box.MARKDOWN)
  for name, s in scores.items():
    table.add_row(name, *_rates(s))
  console.print(table)
  for sentence in warnings_of(scores):
    console.print(sentence)


def print_scores(scores: Mapping[str, TaskScore], console: Console) -> None:
  """Prints a table of success with its 95 % interval."""
  table = Table("task", "n", "success", "95 %", "reward", "lost", "statuses")
  for name, s in scores.items():
    table.add_row(
      name,
      *_rates(s),
      f"{s.mean_reward:.3f}",
      str(s.num_lost),
      ", ".join(f"{k} {v}" for k, v in s.statuses.items()),
    )
  console.print(table)


def main() -> None:
  """Evaluates as the flags say."""
  config = CONFIG.value
  settings = read_settings(config)
  with placed_environments(settings) as environments:
    scores = _scores(config, settings, environments)
  console = Console()
  if _POLICY.value == SCRIPTED:
    print_scripted(scores, console)
  else:
    print_scores(scores, console)
  if _OUTPUT.value:
    body = {"policy": _POLICY.value, "tasks": scores_to_json(scores)}
    pathlib.Path(_OUTPUT.value).write_text(json.dumps(body, indent=2))


def _scores(
  config: ml_collections.ConfigDict,
  settings: Settings,
  environments: Mapping[str, Environment],
) -> dict[str, TaskScore]:
  plan = config.evaluation
  tasks = choose_tasks(
    environments,
    _TASKS.value,
    num_tasks=plan.num_tasks,
    seed=settings.seed,
  )
  if _POLICY.value in STORED:
    return _score_stored(settings, environments, tasks, config)
  if _POLICY.value == SCRIPTED:
    return score_scripted(settings, environments, tasks, plan)
  word = _POLICY.value.removeprefix(f"{SCRIPTED}:")
  return score(
    settings, tasks, _script_player(settings, environments, word), plan
  )


def _script_player(
  settings: Settings, environments: Mapping[str, Environment], policy: str
) -> Player:
  max_turns = settings.episode.max_turns
  if policy not in EXPERTS:
    return ScriptedPlayer(
      environments=environments,
      max_turns=max_turns,
      policy=policy,
      waits=settings.waits,
    )
  mistakes = {n: s.mistakes for n, s in settings.environments.items()}
  return ScriptPlayer(
    environments=environments,
    max_turns=max_turns,
    mistakes={} if policy == "expert" else mistakes,
    waits=settings.waits,
  )


def _score_stored(
  settings: Settings,
  environments: Mapping[str, Environment],
  tasks: Sequence[Task],
  config: ml_collections.ConfigDict,
) -> dict[str, TaskScore]:
  if RUN.value is None or not pathlib.Path(RUN.value).is_dir():
    raise ConfigError(
      f"--policy={_POLICY.value} needs --run=<folder of a run>, found "
      f"{RUN.value!r}"
    )
  run = RunDirectory(pathlib.Path(RUN.value))
  codec = codec_of(run.root, settings.chat)
  policy = Policy(settings.model, settings.compute, adaptation=settings.lora)
  params = load_params(settings, policy, run, _POLICY.value)
  with serve(settings, policy, codec, driver=config.engine.driver) as service:
    service.publisher.publish(params, 0)
    player = PolicyPlayer(
      environments=environments,
      generator=service.generator,
      codec=codec,
      limits=settings.episode,
      sampling=Sampling(
        temperature=0.0 if _GREEDY.value else settings.sampling.temperature,
        top_k=0,
        top_p=1.0,
        calls=settings.sampling.calls,
      ),
      waits=settings.waits,
    )
    return score(settings, tasks, player, config.evaluation)


if __name__ == "__main__":
  command_line.run(main)
