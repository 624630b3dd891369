"""Trains an agent from nothing and shows that it learned.

  python -m launch.train --config=configs/quickstart.py
  python -m launch.train --config=configs/quickstart.py --config.seed=1

Any key of the config can be set so; a misspelt one is refused. Starting the
same run again goes on where it stopped, whatever stopped it.
"""

import contextlib
import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Callable, Sequence

import jax
import ml_collections
from absl import flags, logging
from rich.console import Console

from agentrl_jax.data.chat import ChatCodec
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.metrics import MetricsWriter
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy, num_params
from agentrl_jax.train.custom_trial import try_advantage, try_loss
from agentrl_jax.train.weights.publish import Publisher
from launch import command_line
from launch.config.chat import codec_of, save_chat
from launch.config.checks import refuse_absent
from launch.config.settings import Settings, read_settings
from launch.processes.group import Processes, joined
from launch.processes.interrupts import Interrupted, Interrupts, listen
from launch.report.progress import StageProgress
from launch.run import demonstrations, results
from launch.run.chat_transfer import share_chat
from launch.run.environments import placed_environments
from launch.run.evaluation import EvaluationPlan, Evaluator
from launch.run.group_source import STAGE as RL
from launch.run.group_source import FollowerGroupSource, GroupSource
from launch.run.playing import LeaderGroupSource
from launch.run.reinforcement import Reinforcement
from launch.run.warm_start import STAGE as WARM_START
from launch.run.warm_start import warm_start
from launch.serving import remote
from launch.serving.service import serve_run
from launch.shared_flags import CONFIG
from launch.storage.compile_cache import enable_compile_cache
from launch.storage.load_params import first_params, fresh_params, load_params
from launch.storage.run_directory import RunDirectory

flags.mark_flag_as_required("config")

CONSOLE = Console()


def train(config: ml_collections.ConfigDict) -> None:
  """Every stage of a run, those that are done already left out."""
  settings = read_settings(config)
  _refuse_nothing_learned(settings)
  refuse_absent(settings.policy_slots)
  plan = EvaluationPlan(**config.evaluation.to_dict())
  with joined(settings.processes) as processes:
    run = RunDirectory(
      pathlib.Path(config.workdir) / config.name, config.checkpoint.directory
    )
    try_loss(settings.loss)
    try_advantage(settings.advantage)
    enable_compile_cache(run.root, config.compile_cache)
    policy = Policy(
      settings.model,
      settings.compute,
      sharding.make_mesh(settings.mesh),
      settings.lora,
    )
    with listen(processes, settings.checkpoint.grace_s) as interrupts:
      start = RunContext(config, settings, policy, run, processes, interrupts)
      if processes.leads:
        with run.held():
          _lead(start, plan)
      else:
        _follow(start)


def _refuse_nothing_learned(settings: Settings) -> None:
  """What may be planned, but would not learn."""
  if not settings.warm_start_epochs and not settings.pretrained:
    raise ConfigError(
      "warm_start.epochs=0 leaves a policy that says nothing to learn from: "
      "set pretrained.path to a Hugging Face folder, or warm_start.epochs=1"
    )


@dataclasses.dataclass(frozen=True)
class RunContext:
  """What every process of this start of a run has."""

  config: ml_collections.ConfigDict
  settings: Settings
  policy: Policy
  run: RunDirectory
  processes: Processes
  interrupts: Interrupts


def _lead(start: RunContext, plan: EvaluationPlan) -> None:
  """Process 0: plays, trains, scores and shows."""
  try:
    codec = _stages(start, plan)
  except Interrupted as stopped:
    start.interrupts.close()  # all is saved: what follows has time
    _tell_stopped(start, stopped)
    raise
  results.show(start.config, start.settings, start.run, codec, CONSOLE)


def _tell_stopped(start: RunContext, stopped: Interrupted) -> None:
  """A report of the run so far, and one line on how it goes on."""
  run, codec = start.run, None
  with contextlib.suppress(ConfigError):  # it was stopped before there is one
    codec = codec_of(run.root, start.settings.chat)
  results.keep(start.config, start.settings, run, codec, is_finished=False)
  done = ", ".join(name for name in run.seconds() if run.is_done(name))
  kept = stopped.kept or f"stages that are done ({done or 'none yet'})"
  everywhere = " in every process" if start.processes.count > 1 else ""
  CONSOLE.print(
    f"stopped by {stopped.signal.name}; kept in {run.root}: {kept}; report: "
    f"{run.report}; to continue{everywhere}: {_command()}",
    soft_wrap=True,
    highlight=False,
    markup=False,
  )


def _command() -> str:
  """The command line that started this process."""
  if pathlib.Path(sys.argv[0]).stem != "train":
    return "start the same run again"
  return shlex.join([sys.executable, "-m", "launch.train", *sys.argv[1:]])


def _stages(start: RunContext, plan: EvaluationPlan) -> ChatCodec:
  """Every stage; the chat that the run speaks."""
  config, settings, run = start.config, start.settings, start.run
  with (
    placed_environments(settings) as environments,
    MetricsWriter(run.root) as metrics,
  ):
    # Not before the environments have taken their options and mistakes: a
    # config that is refused must not be the one that the run is held to.
    run.keep_config(config)
    CONSOLE.print(f"{run.root}: {', '.join(settings.task_ids)} on {_devices()}")
    with start.interrupts.at_once():
      _demonstrate(config, settings, run)
    codec = share_chat(start.processes, run.root, settings.chat)
    warm = _warm(start, metrics)
    evaluator = Evaluator(settings, plan, environments, run, metrics)
    with serve_run(config, settings, start.policy, codec) as service:

      def score(stage: str, *modes: str) -> None:
        with start.interrupts.at_once():
          for mode in modes:
            evaluator.policy(stage, mode, service)

      with start.interrupts.at_once():
        evaluator.expert()
      groups = LeaderGroupSource(
        config,
        settings,
        environments,
        service,
        run,
        metrics,
        start.processes,
        start.interrupts,
      )
      _reinforce(start, warm, groups, service.publisher, codec, score)
  return codec


def _follow(start: RunContext) -> None:
  """Any other process: computes what process 0 computes."""
  codec = share_chat(start.processes, start.run.root, start.settings.chat)
  warm = _warm(start, None)
  groups = FollowerGroupSource(start.processes)
  with remote.followed(start.config, start.settings, start.policy) as publisher:
    _reinforce(
      start, warm, groups, publisher, codec, lambda stage, *modes: None
    )


def _reinforce(
  start: RunContext,
  warm: Params,
  groups: GroupSource,
  publisher: Publisher,
  codec: ChatCodec,
  score: Callable[..., None],
) -> None:
  """Reinforcement learning, and what the policy is worth before and after."""
  policy, run, share = start.policy, start.run, start.processes.share
  # The others wait for a word here, and not in the midst of a program.
  share(what="the expert's scores")
  if not start.settings.pretrained:
    publisher.publish(fresh_params(policy, start.settings.seed), 0)
    score("untrained", "sampled")
    share(what="the untrained policy's scores")
  publisher.publish(warm, 0)
  score("warm_start", "greedy", "sampled")
  share(what="the warm start's scores")
  with _staged(start, RL):
    Reinforcement(
      start.config, start.settings, policy, groups, publisher, run, codec
    ).train(warm, start.interrupts)
  score("rl", "greedy", "sampled")


def _staged(
  start: RunContext, stage: str
) -> contextlib.AbstractContextManager[None]:
  """Process 0 times a stage that is not done."""
  if start.processes.leads and not start.run.is_done(stage):
    return start.run.stage(stage)
  return contextlib.nullcontext()


def _demonstrate(
  config: ml_collections.ConfigDict, settings: Settings, run: RunDirectory
) -> None:
  """The tokenizer and the demonstrations, as files of the run."""
  if config.pretrained.path:
    save_chat(
      run.root,
      config.pretrained.path,
      settings.chat,
      vocab_size=settings.model.vocab_size,
    )
  elif not run.tokenizer.exists():
    with run.stage("tokenizer"), CONSOLE.status("training the tokenizer"):
      tokenizer = demonstrations.make_tokenizer(
        settings, **config.tokenizer.to_dict()
      )
      partial = run.tokenizer.with_suffix(".partial")
      tokenizer.save(str(partial))
      partial.replace(run.tokenizer)
  if settings.warm_start_epochs and not run.demonstrations.exists():
    number = config.warm_start.num_demonstrations
    with (
      run.stage("demonstrations"),
      StageProgress("demonstrations", number) as show,
    ):
      rows = demonstrations.demonstrate(
        settings, run.root, number, lambda done: show.update(done, {})
      )
      demonstrations.save_rows(run.demonstrations, rows)


def _warm(start: RunContext, metrics: MetricsWriter | None) -> Params:
  """The warm start's params, on the policy's mesh."""
  run, processes = start.run, start.processes
  is_done = processes.share_json(
    run.is_done(WARM_START), what="how far the run is"
  )
  if not start.settings.warm_start_epochs:
    return first_params(start.settings, start.policy)
  if is_done:
    return load_params(start.settings, start.policy, run, WARM_START)
  rows = processes.share(
    run.demonstrations.read_bytes() if processes.leads else b"",
    what="the demonstrations",
  )
  with _staged(start, WARM_START):
    params = warm_start(
      start.settings,
      start.policy,
      demonstrations.load_rows(run.demonstrations, rows),
      run,
      metrics,
      start.interrupts,
    )
  if processes.leads:
    CONSOLE.print(f"warm start of {num_params(params):,} parameters is done")
  return params


def _devices() -> str:
  found = jax.devices()
  return f"{len(found)} {found[0].platform} device{'s' * (len(found) > 1)}"


def main(argv: Sequence[str]) -> None:
  """Runs the config of the command line; an error is one clear sentence."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax tells every file it writes
  try:
    train(CONFIG.value)
  except AgentRLError as error:
    sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
  command_line.run(main)
