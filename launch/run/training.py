"""Runs every stage of a training run, in order; finished stages are skipped.

Process 0 leads: it plays, trains, evaluates and writes files. Any other process
follows: it computes the same updates from the same groups.
"""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping

import jax
import ml_collections

from agentrl_jax.controller.episode import environments_own, first_prompt
from agentrl_jax.controller.player import without_expert
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import EpisodeSpec, Task, seed_of
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import ConfigError, DeadlineExceeded, EnvironmentFault
from agentrl_jax.files import write_whole
from agentrl_jax.model.policy import Params, num_params
from agentrl_jax.train.weights.publish import Publisher
from launch.config.chat import (
  codec_of,
  require_same_vocabulary,
  save_chat,
  share_chat,
)
from launch.config.settings import Settings
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import FaultLog
from launch.processes.interrupts import Interrupted
from launch.processes.terminal import plain_console
from launch.reports.first_prompts import FirstPrompt
from launch.reports.metrics_file import MetricsWriter
from launch.reports.progress import StageProgress
from launch.run import demonstrations, results
from launch.run.context import RunContext, open_run
from launch.run.environments import placed_environments, tasks_during
from launch.run.evaluation import Evaluator
from launch.run.groups.group_source import (
  FollowerGroupSource,
  GroupSource,
  LeaderGroupSource,
)
from launch.run.groups.run_record import STAGE as RL
from launch.run.reinforcement import Reinforcement
from launch.run.traces import traced
from launch.run.trackers import tracked
from launch.run.warm_start import STAGE as WARM_START
from launch.run.warm_start import warm_start
from launch.serving import remote
from launch.serving.agents import require_startable
from launch.serving.service import serve_run
from launch.storage.first_stages import take_first_stages
from launch.storage.load_params import first_params, fresh_params, load_params
from launch.storage.run_directory import RUN

CONSOLE = plain_console()
_PROMPT_S = 60.0  # for an environment to show its first prompt


def train(config: ml_collections.ConfigDict) -> None:
  """Trains to the end of the config, from wherever an earlier start got."""
  _require_learning(config)
  with open_run(config) as context:
    if context.processes.leads:
      _lead(context)
    else:
      _follow(context)


def _require_learning(config: ml_collections.ConfigDict) -> None:
  """Refuses what can be planned but would not learn."""
  if config.warm_start.chats and not config.pretrained.path:
    raise ConfigError(
      f"warm_start.chats={config.warm_start.chats!r} has no policy to teach: "
      "set pretrained.path to a Hugging Face folder, whose chat template it is "
      "written with"
    )
  if not config.warm_start.epochs and not config.pretrained.path:
    raise ConfigError(
      "warm_start.epochs=0 leaves a policy that says nothing to learn from: "
      "set pretrained.path to a Hugging Face folder, or warm_start.epochs=1"
    )


def _require_players(
  context: RunContext, environments: Mapping[str, Environment]
) -> None:
  """Refuses agents that cannot start, and a warm start without experts."""
  settings = context.settings
  require_startable(settings)
  if not settings.warm_start.epochs or context.config.warm_start.chats:
    return
  if missing := without_expert(environments, "train"):
    raise ConfigError(
      f"{', '.join(missing)} has no expert, and warm_start.epochs="
      f"{settings.warm_start.epochs} learns from experts: set "
      "warm_start.epochs=0 and pretrained.path to a Hugging Face folder, or "
      "warm_start.chats to a file of chats, give the environment's class an "
      "`expert`, or leave it out of tasks.names"
    )


def _lead(context: RunContext) -> None:
  """Runs every stage in process 0 and shows the results."""
  try:
    with context.timed(RUN):
      codec = _run_stages(context)
  except Interrupted as stopped:
    context.interrupts.close()  # all is saved: what follows has time
    _report_stop(context, stopped)
    raise
  results.show(context, codec, CONSOLE)


def _report_stop(context: RunContext, stopped: Interrupted) -> None:
  """Writes a report of the run so far, and prints how to continue it."""
  folder, codec = context.folder, None
  with contextlib.suppress(ConfigError):  # stopped before there is a tokenizer
    codec = codec_of(folder.root, context.settings.chat)
  results.keep(context, codec, is_finished=False)
  done = ", ".join(name for name in folder.seconds() if folder.is_done(name))
  kept = stopped.kept or f"stages that are done ({done or 'none yet'})"
  everywhere = " in every process" if context.processes.count > 1 else ""
  CONSOLE.print(
    f"stopped by {stopped.signal.name}; kept in {folder.root}: {kept}; report: "
    f"{folder.report}; to continue{everywhere}: {_command()}",
    soft_wrap=True,
    highlight=False,
  )


def _command() -> str:
  """Returns the command line that started this process."""
  if pathlib.Path(sys.argv[0]).stem != "train":
    return "start the same run again"
  return shlex.join([sys.executable, "-m", "launch.train", *sys.argv[1:]])


def _run_stages(context: RunContext) -> ChatCodec:
  """Runs every stage; returns the chat codec of the run."""
  settings, folder = context.settings, context.folder
  with contextlib.ExitStack() as stack:
    environments = stack.enter_context(placed_environments(settings))
    share = context.config.report.trace_share
    stack.enter_context(traced(folder.root, context.config.name, share=share))
    # Not before the environments have taken their options and mistakes: a
    # config that is refused must not be the one that the run is held to.
    _require_players(context, environments)
    tasks_during(settings, environments)
    folder.keep_config(context.config)
    if not folder.is_done(RUN):
      FaultLog(folder.root / FAULTS).started(folder.newest_step(RL))
    CONSOLE.print(
      f"{folder.root}: {', '.join(settings.task_ids) or 'chats'} on "
      f"{_devices()}"
    )
    take_first_stages(context.config, folder)
    copy_to = stack.enter_context(
      tracked(context.config.report.trackers, folder.root, context.config)
    )
    metrics = stack.enter_context(MetricsWriter(folder.root, copy_to=copy_to))
    with context.interrupts.at_once():
      make_chat(context)
      show_first_prompts(context, environments)
      make_demonstrations(context)
    codec = share_chat(context.processes, folder.root, settings.chat)
    if settings.reference.path:
      require_same_vocabulary(folder.root, settings.reference.path)
    warm = [warm_start_params(context, metrics)]
    if not environments:  # then there is nothing to play
      return codec
    evaluator = Evaluator(context, settings.evaluation, environments, metrics)
    with context.interrupts.at_once():
      service = stack.enter_context(
        serve_run(context.config, settings, context.policy, codec)
      )

    def score(stage: str, *modes: str) -> None:
      with context.interrupts.at_once():
        for mode in modes:
          if settings.evaluation.number_of(stage, mode):
            evaluator.policy(stage, mode, service)

    with context.interrupts.at_once():
      evaluator.expert()
      evaluator.scripted()
    groups = LeaderGroupSource(context, environments, service, metrics)
    _reinforce(context, warm, groups, service.publisher, codec, score)
  return codec


def _follow(context: RunContext) -> None:
  """Computes in any other process what process 0 computes."""
  codec = share_chat(
    context.processes, context.folder.root, context.settings.chat
  )
  warm = [warm_start_params(context, None)]
  if not context.settings.environments:
    return
  groups = FollowerGroupSource(context.processes)
  with remote.followed(
    context.config, context.settings, context.policy
  ) as publisher:
    _reinforce(
      context, warm, groups, publisher, codec, lambda stage, *modes: None
    )


def _reinforce(
  context: RunContext,
  warm: list[Params],
  groups: GroupSource,
  publisher: Publisher,
  codec: ChatCodec,
  score: Callable[..., None],
) -> None:
  """Trains by reinforcement, and scores the policy before and after.

  Takes the params out of `warm`: a caller that named them would keep a copy of
  the policy on the accelerators until the run ends.
  """
  share = context.processes.share
  # The other processes wait here, and not in the middle of a program.
  share(what="the expert's scores")
  if not context.settings.pretrained:
    publisher.publish(fresh_params(context.settings, context.policy), 0)
    score("untrained", "sampled")
    share(what="the untrained policy's scores")
  publisher.publish(warm[0], 0)
  score("warm_start", "greedy", "sampled")
  share(what="the warm start's scores")
  if not context.config.train.steps:
    return
  reinforcement = Reinforcement(context, groups, publisher, codec)
  with context.timed(RL):
    reinforcement.train(warm.pop())
  groups.finish()
  share(what="the last evaluation during RL")
  reinforcement.end_with_best()
  score("rl", "greedy", "sampled")


def make_chat(context: RunContext) -> None:
  """Trains the run's tokenizer, or copies the chat of a pretrained model.

  Process 0 calls it; does nothing where an earlier start has done it.
  """
  config, settings, folder = context.config, context.settings, context.folder
  if config.pretrained.path:
    save_chat(folder.root, config.pretrained.path, settings.chat)
  elif not folder.tokenizer.exists():
    options = config.tokenizer.to_dict()
    with (
      folder.stage("tokenizer"),
      StageProgress("tokenizer", options["num_texts"]) as show,
    ):
      tokenizer = demonstrations.make_tokenizer(
        settings, **options, on_progress=lambda done: show.update(done, {})
      )
      write_whole(folder.tokenizer, tokenizer.to_str(pretty=True))


def show_first_prompts(
  context: RunContext, environments: Mapping[str, Environment]
) -> None:
  """Prints and keeps the first prompt of each environment, in text and in ids.

  Process 0 calls it; does nothing where an earlier start has done it. An
  environment's fault costs its prompt. Raises `ConfigError` for a chat template
  that cannot show a task.
  """
  path = context.folder.first_prompts
  if path.exists() or not environments:
    return
  codec = codec_of(context.folder.root, context.settings.chat)
  prompts = asyncio.run(_first_prompts(context.settings, environments, codec))
  for name, prompt in prompts.items():
    CONSOLE.print(prompt.shown(name, path), soft_wrap=True, highlight=False)
    if len(prompt.ids) >= (room := context.settings.episode.max_tokens):
      CONSOLE.print(
        f"{name}: no answer fits behind {len(prompt.ids)} tokens in "
        f"episode.max_tokens={room}: raise it, or leave out tools of an MCP "
        f"server by environments.{name}.options.tools=(...)",
        soft_wrap=True,
        highlight=False,
      )
  write_whole(path, json.dumps(dict(prompts), default=vars, indent=1))


async def _first_prompts(
  settings: Settings, environments: Mapping[str, Environment], codec: ChatCodec
) -> dict[str, FirstPrompt]:
  waits = dataclasses.replace(
    settings.waits,
    session_timeout_s=min(_PROMPT_S, settings.waits.session_timeout_s),
    reply_timeout_s=min(_PROMPT_S, settings.waits.reply_timeout_s),
  )

  async def prompt_of(name: str) -> FirstPrompt:
    split = "test" if settings.environments[name].held_out else "train"
    with environments_own(name, "indices"):
      task = Task(name, split, int(environments[name].indices(split)[0]))
    seed = seed_of(settings.seed, "first prompt", name)
    spec = EpisodeSpec(task=task, group_id="first", attempt=0, seed=seed)
    ids = await first_prompt(
      spec, environments[name], codec, waits=waits, subagent=settings.subagent
    )
    title = f"{name} {split} {task.index}"
    return FirstPrompt(title, codec.decode(ids), ids.tolist(), "")

  async def prompt_or_fault(name: str) -> FirstPrompt:
    try:
      return await prompt_of(name)
    except (EnvironmentFault, DeadlineExceeded) as fault:
      return FirstPrompt(name, "", [], str(fault))

  shown = [n for n, each in environments.items() if not each.is_of_agents]
  prompts = await asyncio.gather(*map(prompt_or_fault, shown))
  return dict(zip(shown, prompts, strict=True))


def make_demonstrations(context: RunContext) -> None:
  """Plays the experts of the warm start, or reads chats, and packs them.

  Process 0 calls it; does nothing where an earlier start has done it.
  """
  settings, folder = context.settings, context.folder
  if not settings.warm_start.epochs or folder.demonstrations.exists():
    return
  number = context.config.warm_start.num_demonstrations
  chats, sentence = context.config.warm_start.chats, ""
  if chats:
    number = demonstrations.count_chats(pathlib.Path(chats), number)
  with (
    folder.stage("demonstrations"),
    StageProgress("demonstrations", number) as show,
  ):

    def on_progress(done: int) -> None:
      show.update(done, {})

    if chats:
      rows, sentence = demonstrations.read_chats(
        settings, folder.root, pathlib.Path(chats), number, on_progress
      )
    else:
      rows = demonstrations.demonstrate(
        settings, folder.root, number, on_progress
      )
    demonstrations.save_rows(folder.demonstrations, rows)
  if sentence:
    CONSOLE.print(sentence, soft_wrap=True, highlight=False)


def warm_start_params(
  context: RunContext, metrics: MetricsWriter | None
) -> Params:
  """Returns the params after the warm start, on the policy's mesh."""
  folder, processes = context.folder, context.processes
  is_done = processes.share_json(
    folder.is_done(WARM_START), what="how far the run is"
  )
  if not context.settings.warm_start.epochs:
    return first_params(context.settings, context.policy)
  if is_done:
    return load_params(context.settings, context.policy, folder, WARM_START)
  rows = processes.broadcast(
    folder.demonstrations.read_bytes() if processes.leads else b"",
    what="the demonstrations",
  )
  with context.timed(WARM_START):
    params = warm_start(
      context, demonstrations.load_rows(folder.demonstrations, rows), metrics
    )
  if processes.leads:
    CONSOLE.print(f"warm start of {num_params(params):,} parameters is done")
  return params


def _devices() -> str:
  devices = jax.devices()
  return (
    f"{len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}"
  )
