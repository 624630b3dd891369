r"""Evaluates a policy on chosen tasks, without training anything.

  python -m launch.evaluate --config=configs/agentbench.py:DATA \
    --policy=expert --tasks=dbbench/dev,webshop/test
  python -m launch.evaluate --config=configs/quickstart.py \
    --policy=rl --run=runs/quickstart

Policies: `expert` is each environment's error-free expert, `imperfect` the
expert with the config's mistakes, `warm_start` and `rl` the last checkpoint of
that stage of `--run`, or the one of `--version`. `pretrained` is the model of
the config's `pretrained.path`, as `launch.export` writes it; no run is
needed. `scripted:NAME` is one of the environments' policies of a few lines,
which see messages and tools but no solution; `scripted` plays all of them and
the expert, and warns where one wins more than 30 %. `agents` is the last
checkpoint of RL, played by the agents that play the run's episodes
(docs/serving.md). `endpoint` is any model behind OpenAI's chat API:

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=endpoint --endpoint=http://host:8000/v1 --model=qwen

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=endpoint --endpoint=https://api.openai.com/v1 --model=gpt-5 \
    --key_file=key --endpoint_tokens=max_completion_tokens \
    --noendpoint_temperature --noendpoint_seed

  python -m launch.evaluate --config=configs/every_environment.py \
    --policy=scripted --tasks=webshop/test,arithmetic/test

  python -m launch.evaluate --config=my_config.py --policy=agents \
    --run=runs/mine --config.agents.port=0 --config.agents.program="..."

`--chats` keeps the conversations whose reward is at least `--chats_reward`, as
demonstrations for `warm_start.chats`: rejection sampling (docs/your_data.md).

Prints a table and, with `--output`, writes it as JSON. `--samples=16` attempts
each task as often, for pass@k. Every attempt is kept beside the output, and the
same command goes on with those that are missing.

  python -m launch.evaluate --config=configs/quickstart.py --policy=rl \
    --run=runs/quickstart --version=40 --samples=16 --nogreedy \
    --output=pass.json
"""

import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence

import ml_collections
from absl import flags

from agentrl_jax.bearer_token import read_token
from agentrl_jax.controller.evaluation import (
  EvaluationPlan,
  TaskScore,
  draw_tasks,
)
from agentrl_jax.controller.player import (
  BaselinePlayer,
  ExpertTextPlayer,
  Player,
  without_expert,
)
from agentrl_jax.data.records import Task, Trajectory
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.files import write_whole
from agentrl_jax.model.hugging_face.tensor_files import model_digest
from launch.comparisons.attempts import (
  FOLDER,
  SUFFIX,
  AttemptLog,
  ChatLog,
  Lost,
  attempts_to_json,
  by_environment,
  labels_of,
  one_split_each,
  with_attempts,
)
from launch.comparisons.score_tables import (
  print_attempts,
  print_scores,
  print_scripted,
)
from launch.config import command_line
from launch.config.settings import Settings, read_settings
from launch.processes.terminal import plain_console
from launch.reports.progress import StageProgress
from launch.run.environments import placed_environments
from launch.run.evaluation import (
  Serving,
  play_tasks,
  policy_player,
  scores_to_json,
)
from launch.serving.agents import AgentServer, require_agents
from launch.serving.endpoint_player import (
  TOKEN_LIMITS,
  ChatEndpoint,
  EndpointPlayer,
)
from launch.serving.stored_service import served_checkpoint, served_folder
from launch.storage.run_directory import (
  RunDirectory,
  environment_keys,
  played_otherwise,
)

CONFIG = command_line.define_config()
RUN = command_line.define_run()

EXPERTS = ("expert", "imperfect")
AGENTS = "agents"
# By the policies that a run has: the stage of their checkpoints.
STORED = {"warm_start": "warm_start", "rl": "rl", AGENTS: "rl"}
PRETRAINED, SCRIPTED, ENDPOINT = "pretrained", "scripted", "endpoint"

_POLICY = flags.DEFINE_string(
  "policy",
  "expert",
  "Who plays: expert, imperfect, warm_start, rl, agents, pretrained, "
  "endpoint, scripted or scripted:NAME.",
)
flags.register_validator(
  "policy",
  lambda word: (
    word in (*EXPERTS, *STORED, PRETRAINED, ENDPOINT)
    or word.split(":")[0] == SCRIPTED
  ),
  "is none of expert, imperfect, warm_start, rl, agents, pretrained, "
  "endpoint, scripted and scripted:NAME",
)
_TASKS = flags.DEFINE_list(
  "tasks", None, "name/split, one or more; the test split of each if not given."
)
_GREEDY = flags.DEFINE_bool("greedy", True, "Greedy, or at the temperature.")
_SAMPLES = flags.DEFINE_integer("samples", 1, "Attempts at each task.")
_VERSION = flags.DEFINE_integer(
  "version", None, "Update of the checkpoint; by default the last one."
)
_ENDPOINT = flags.DEFINE_string(
  "endpoint", "", "Of --policy=endpoint, as http://host:8000/v1."
)
_MODEL = flags.DEFINE_string("model", "", "The model's name at the endpoint.")
_KEY_FILE = flags.DEFINE_string(
  "key_file", "", "A file whose first line is the endpoint's key."
)
_ENDPOINT_TOKENS = flags.DEFINE_enum(
  "endpoint_tokens",
  TOKEN_LIMITS[0],
  TOKEN_LIMITS,
  "The parameter of the longest answer that the endpoint knows.",
)
_ENDPOINT_TEMPERATURE = flags.DEFINE_bool(
  "endpoint_temperature", True, "Send a temperature, or leave it to the model."
)
_ENDPOINT_SEED = flags.DEFINE_bool(
  "endpoint_seed", True, "Send a seed with each request."
)
_OUTPUT = flags.DEFINE_string("output", None, "A JSON file for the scores.")
_CHATS = flags.DEFINE_string(
  "chats",
  "",
  "A .jsonl file, to which conversations of good attempts are added.",
)
_CHATS_REWARD = flags.DEFINE_float(
  "chats_reward", 1.0, "The least reward of a conversation in --chats."
)
flags.mark_flag_as_required("config")


def score(
  settings: Settings,
  tasks: Sequence[Task],
  player: Player,
  plan: EvaluationPlan,
  log: AttemptLog | None = None,
  serving: Serving = contextlib.nullcontext,
) -> dict[str, TaskScore]:
  """Plays every task and scores by environment; see `labels_of`.

  With a log, each is attempted `--samples` times, except for what the log has;
  the scores are those of what is played now. The player plays within `serving`.
  """
  skip = log.played if log else set()
  number = len(tasks) * _SAMPLES.value - len(skip)
  labels, scores, num_before = labels_of(tasks), dict[str, TaskScore](), 0
  with StageProgress("evaluation", number) as show:

    def note(done: int, _: int, played: Trajectory | None) -> None:
      if log and played is not None:
        log.add(played)
      show.update(num_before + done, {})

    for some in one_split_each(tasks):
      found = play_tasks(
        player,
        some,
        settings,
        plan,
        name="evaluation",
        progress=note,
        serving=serving,
        attempts=_SAMPLES.value,
        skip=skip,
      )
      num_before += sum(s.num_tasks + s.num_lost for s in found.values())
      scores |= {labels[t.name, t.split]: found[t.name] for t in some}
  return scores


def choose_tasks(
  environments: Mapping[str, Environment],
  wanted: Sequence[str] | None,
  *,
  num_tasks: int,
  seed: int,
) -> list[Task]:
  """Draws up to `num_tasks` tasks of each `name/split` word."""
  if not environments:
    raise ConfigError("tasks.names is empty: name a task to evaluate on")
  chosen: list[Task] = []
  for word in dict.fromkeys(wanted or [f"{x}/test" for x in environments]):
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
  plan: EvaluationPlan,
) -> dict[str, TaskScore]:
  """Scores every scripted policy and the expert, as `environment policy`.

  The expert of an environment that has none is left out.
  """
  scores: dict[str, TaskScore] = {}
  for name in dict.fromkeys(task.name for task in tasks):
    mine = [task for task in tasks if task.name == name]
    policies = list(environments[name].scripted_policies())
    if not without_expert({name: environments[name]}, mine[0].split):
      policies.append("expert")
    for policy in policies:
      player = _script_player(settings, environments, policy)
      for label, each in score(settings, mine, player, plan).items():
        scores[f"{label} {policy}"] = each
  return scores


def main() -> None:
  """Evaluates as the flags say."""
  config = CONFIG.value
  settings = read_settings(config)
  _check_flags()
  _check_chats(settings)
  if _POLICY.value == AGENTS:
    require_agents(settings)
  log = _open_log(config) if _keeps_attempts() else None
  console = plain_console()
  if log and log.attempts:
    console.print(
      f"{len(log.attempts)} attempts were played before: {log.path}"
    )
  with placed_environments(settings) as environments:
    tasks = choose_tasks(
      environments,
      _TASKS.value,
      num_tasks=config.evaluation.num_tasks,
      seed=settings.seed,
    )
    scores = _scores(config, settings, environments, tasks, log)
  if log and log.chats:
    console.print(f"{log.chats.num_rows} conversations: {log.chats.path}")
  attempts = by_environment(log.attempts, tasks) if log else {}
  if _SAMPLES.value > 1:
    print_attempts(attempts, console, _SAMPLES.value)
    found = attempts_to_json(attempts, _SAMPLES.value)
    lost = sum(
      Lost.of(each, _SAMPLES.value).num_attempts for each in attempts.values()
    )
  else:
    scores = {
      name: with_attempts(score, attempts[name]) if name in attempts else score
      for name, score in scores.items()
    }
    show = print_scripted if _POLICY.value == SCRIPTED else print_scores
    show(scores, console)
    found = scores_to_json(scores)
    lost = sum(score.num_lost for score in scores.values())
  if output := _output():
    body = {"policy": _POLICY.value, "tasks": found, "lost": lost}
    write_whole(output, json.dumps(body, indent=2))


def _check_flags() -> None:
  if _SAMPLES.value < 1:
    raise ConfigError(f"--samples={_SAMPLES.value} must be at least 1")
  if _SAMPLES.value > 1 and _POLICY.value.split(":")[0] == SCRIPTED:
    raise ConfigError(
      f"--samples={_SAMPLES.value} attempts of a script would all be the same: "
      "leave --samples out"
    )
  played = (*STORED, PRETRAINED, ENDPOINT)
  if _SAMPLES.value > 1 and _GREEDY.value and _POLICY.value in played:
    raise ConfigError(
      f"--samples={_SAMPLES.value} greedy attempts would all be the same: add "
      "--nogreedy"
    )
  if _VERSION.value is not None and _POLICY.value not in STORED:
    raise ConfigError(
      f"--version is of --policy={' or '.join(STORED)}, found "
      f"--policy={_POLICY.value}"
    )
  is_plain = (
    _ENDPOINT_TOKENS.value == TOKEN_LIMITS[0]
    and _ENDPOINT_TEMPERATURE.value
    and _ENDPOINT_SEED.value
  )
  if _POLICY.value != ENDPOINT and not is_plain:
    raise ConfigError(
      "--endpoint_tokens, --endpoint_temperature and --endpoint_seed are of "
      f"--policy={ENDPOINT}, found --policy={_POLICY.value}"
    )
  _check_source()


def _check_chats(settings: Settings) -> None:
  """Refuses files and episodes that are no rows of one conversation."""
  if not _CHATS.value:
    return
  if _POLICY.value == SCRIPTED or settings.subagent.tool:
    raise ConfigError(
      f"--chats={_CHATS.value} keeps one player's conversations: name one "
      "--policy, and leave subagent.tool empty"
    )


def _check_source() -> None:
  """Refuses a policy whose model is not named."""
  if _POLICY.value == ENDPOINT and not (_ENDPOINT.value and _MODEL.value):
    raise ConfigError(
      "--policy=endpoint needs --endpoint=http://host:8000/v1 and --model=NAME"
    )
  if _POLICY.value == PRETRAINED and not CONFIG.value.pretrained.path:
    raise ConfigError(
      "--policy=pretrained needs a Hugging Face folder: "
      "--config.pretrained.path=<folder>"
    )
  if _POLICY.value in STORED:
    if not RUN.value or not pathlib.Path(RUN.value).is_dir():
      raise ConfigError(
        f"--policy={_POLICY.value} needs --run=<folder of a run>, found "
        f"{RUN.value!r}"
      )
    if words := played_otherwise(pathlib.Path(RUN.value), CONFIG.value):
      plain_console().print(words)


def _keeps_attempts() -> bool:
  """True but for one attempt without a file, and for all scripts in turn."""
  if _POLICY.value == SCRIPTED:
    return False
  return _SAMPLES.value > 1 or bool(_OUTPUT.value or _CHATS.value)


def _open_log(config: ml_collections.ConfigDict) -> AttemptLog:
  """Opens the file of attempts beside the output."""
  identity = {
    "policy": _POLICY.value,
    "run": RUN.value,
    "endpoint": [_ENDPOINT.value, _MODEL.value],
    "version": _played_version(),
    "tasks": _TASKS.value,
    "seed": config.seed,
    "temperature": _temperature(config.sampling.temperature),
    "calls": config.sampling.calls,
    "num_tasks": config.evaluation.num_tasks,
    **{key: config[key].to_dict() for key in ("episode", "chat", "subagent")},
    "dtypes": [config.compute.dtype, config.engine.weights],
    **environment_keys(config),
  }
  if _POLICY.value == PRETRAINED:
    identity["pretrained"] = model_digest(config.pretrained.path)
  if _POLICY.value == AGENTS:
    identity["program"] = config.agents.program
  if not _ENDPOINT_TEMPERATURE.value:
    identity["temperature"] = "the endpoint's own"
  if not _ENDPOINT_SEED.value:
    identity["sends_seed"] = False
  chats = None
  if _CHATS.value:
    identity["chats"] = [_CHATS.value, _CHATS_REWARD.value]
    chats = ChatLog(pathlib.Path(_CHATS.value), _CHATS_REWARD.value)
  output = _output()
  return AttemptLog(output and output.with_suffix(SUFFIX), identity, chats)


def _temperature(sampled: float) -> float:
  """Returns the temperature of answers, 0 for greedy ones."""
  return 0.0 if _GREEDY.value else sampled


def _played_version() -> int | None:
  """Returns the version that is played; of none that is named, the last."""
  if _VERSION.value is not None or _POLICY.value not in STORED or not RUN.value:
    return _VERSION.value
  run, stage = RunDirectory(pathlib.Path(RUN.value)), STORED[_POLICY.value]
  final = run.final_step(stage)
  return run.newest_step(stage) if final is None else final


def _output() -> pathlib.Path | None:
  """Returns the file of the scores; many attempts of a run go to its folder."""
  if _OUTPUT.value:
    return pathlib.Path(_OUTPUT.value)
  if _CHATS.value:
    return pathlib.Path(_CHATS.value).with_suffix(".json")
  if _SAMPLES.value == 1 or _POLICY.value not in STORED or not RUN.value:
    return None
  version = "" if _VERSION.value is None else f"_{_VERSION.value}"
  name = f"{_POLICY.value}{version}"
  return pathlib.Path(RUN.value) / FOLDER / f"{name}.json"


def _scores(
  config: ml_collections.ConfigDict,
  settings: Settings,
  environments: Mapping[str, Environment],
  tasks: Sequence[Task],
  log: AttemptLog | None,
) -> dict[str, TaskScore]:
  plan = settings.evaluation
  if _POLICY.value in (*STORED, PRETRAINED):
    return _score_model(config, settings, environments, tasks, log)
  if _POLICY.value == SCRIPTED:
    return score_scripted(settings, environments, tasks, plan)
  if _POLICY.value == ENDPOINT:
    player = _endpoint_player(settings, environments)
    scores = score(settings, tasks, player, plan, log)
    if not (log and log.attempts):
      player.require_answers(scores)
    return scores
  word = _POLICY.value.removeprefix(f"{SCRIPTED}:")
  if word in EXPERTS:
    require_experts(environments, tasks)
  return score(
    settings, tasks, _script_player(settings, environments, word), plan, log
  )


def _score_model(
  config: ml_collections.ConfigDict,
  settings: Settings,
  environments: Mapping[str, Environment],
  tasks: Sequence[Task],
  log: AttemptLog | None,
) -> dict[str, TaskScore]:
  """Plays with stored weights; agents are offered episodes, as in a run."""
  temperature = _temperature(settings.sampling.temperature)
  root = pathlib.Path(RUN.value or "")
  with (
    served_folder(config, settings)
    if _POLICY.value == PRETRAINED
    else served_checkpoint(
      config,
      settings,
      RunDirectory(root),
      STORED[_POLICY.value],
      _VERSION.value,
    )
  ) as service:
    player: Player = policy_player(settings, environments, service, temperature)
    serving: Serving = contextlib.nullcontext
    if _POLICY.value == AGENTS:
      server = AgentServer(settings, service, root.name, root)
      player, serving = server.evaluated(temperature), server.serving
    return score(settings, tasks, player, settings.evaluation, log, serving)


def require_experts(
  environments: Mapping[str, Environment], tasks: Sequence[Task]
) -> None:
  """Raises `ConfigError` if a task's environment has no expert."""
  for name, split in labels_of(tasks):
    if without_expert({name: environments[name]}, split):
      raise ConfigError(
        f"{name} has no expert; leave it out of --tasks, or name another "
        "policy than expert and imperfect, such as --policy=scripted"
      )


def _endpoint_player(
  settings: Settings, environments: Mapping[str, Environment]
) -> EndpointPlayer:
  temperature = _temperature(settings.sampling.temperature)
  return EndpointPlayer(
    environments=environments,
    max_turns=settings.episode.max_turns,
    waits=settings.waits,
    endpoint=ChatEndpoint(
      url=_ENDPOINT.value,
      model=_MODEL.value,
      key=read_token(_KEY_FILE.value, "--key_file="),
      temperature=temperature if _ENDPOINT_TEMPERATURE.value else None,
      max_tokens=settings.episode.max_answer_tokens,
      token_limit=_ENDPOINT_TOKENS.value,
      sends_seed=_ENDPOINT_SEED.value,
      answer_timeout_s=settings.waits.answer_timeout_s,
    ),
  )


def _script_player(
  settings: Settings, environments: Mapping[str, Environment], policy: str
) -> Player:
  max_turns = settings.episode.max_turns
  if policy not in EXPERTS:
    return BaselinePlayer(
      environments=environments,
      max_turns=max_turns,
      policy=policy,
      waits=settings.waits,
    )
  mistakes = {n: s.mistakes for n, s in settings.environments.items()}
  return ExpertTextPlayer(
    environments=environments,
    max_turns=max_turns,
    mistakes={} if policy == "expert" else mistakes,
    waits=settings.waits,
  )


if __name__ == "__main__":
  command_line.run(main)
