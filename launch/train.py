"""Trains an agent from nothing and shows that it learned.

  python -m launch.train --config=configs/quickstart.py
  python -m launch.train --config=configs/quickstart.py --config.seed=1

Any key of the config can be set so; a misspelt one is refused. Starting the
same run again goes on where it stopped, whatever stopped it.
"""

import contextlib
import pathlib
import sys
from collections.abc import Sequence

import jax
import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags
from rich.console import Console

from agentrl_jax.data.chat import ChatCodec
from agentrl_jax.data.tokenizer import load_tokenizer
from agentrl_jax.errors import AgentRLError
from agentrl_jax.metrics import MetricsWriter
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy, num_params
from agentrl_jax.train.publish import Publisher
from launch import demonstrations, results
from launch.evaluation import EvaluationPlan, Evaluator
from launch.interrupts import Interrupts, listen
from launch.places import placed_environments
from launch.reinforcement import STAGE as RL
from launch.reinforcement import Reinforcement
from launch.report.progress import StageProgress
from launch.run_directory import RunDirectory
from launch.serving import Service, serve
from launch.settings import Settings, read_settings
from launch.stored import stored_params
from launch.warm_start import STAGE as WARM_START
from launch.warm_start import warm_start

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "The experiment: a file whose get_config() returns it."
)
flags.mark_flag_as_required("config")

CONSOLE = Console()


def train(config: ml_collections.ConfigDict) -> None:
  """Every stage of a run, those that are done already left out."""
  settings = read_settings(config)
  plan = EvaluationPlan(**config.evaluation.to_dict())
  run = RunDirectory(pathlib.Path(config.workdir) / config.name)
  with run.held():
    _train(config, settings, plan, run)


def _train(
  config: ml_collections.ConfigDict,
  settings: Settings,
  plan: EvaluationPlan,
  run: RunDirectory,
) -> None:
  run.keep_config(config)
  CONSOLE.print(f"{run.root}: {', '.join(settings.task_ids)} on {_devices()}")
  policy = Policy(
    settings.model, settings.compute, sharding.make_mesh(settings.mesh)
  )
  with (
    placed_environments(settings) as environments,
    listen() as interrupts,
    MetricsWriter(run.root) as metrics,
  ):
    _demonstrate(config, settings, run)
    interrupts.check()
    codec = ChatCodec(load_tokenizer(run.tokenizer))
    warm = _warm(config, settings, policy, run, metrics, interrupts)
    evaluator = Evaluator(settings, plan, environments, run, metrics)
    evaluator.expert()
    driver = config.engine.driver
    with serve(settings, policy, codec, driver=driver) as service:
      _score_before(policy, warm, settings, evaluator, service)
      with run.stage(RL) if not run.is_done(RL) else contextlib.nullcontext():
        Reinforcement(
          config, settings, policy, environments, service, run, metrics
        ).train(warm, interrupts)
      for mode in ("greedy", "sampled"):
        evaluator.policy("rl", mode, service)
  results.show(config, settings, run, codec, CONSOLE)


def _demonstrate(
  config: ml_collections.ConfigDict, settings: Settings, run: RunDirectory
) -> None:
  """The tokenizer and the demonstrations, as files of the run."""
  if not run.tokenizer.exists():
    with run.stage("tokenizer"), CONSOLE.status("training the tokenizer"):
      tokenizer = demonstrations.make_tokenizer(
        settings, **config.tokenizer.to_dict()
      )
      partial = run.tokenizer.with_suffix(".partial")
      tokenizer.save(str(partial))
      partial.replace(run.tokenizer)
  if not run.demonstrations.exists():
    number = config.warm_start.num_demonstrations
    with (
      run.stage("demonstrations"),
      StageProgress("demonstrations", number) as show,
    ):
      rows = demonstrations.demonstrate(
        settings, run.tokenizer, number, lambda done: show.update(done, {})
      )
      demonstrations.save_rows(run.demonstrations, rows)


def _warm(
  config: ml_collections.ConfigDict,
  settings: Settings,
  policy: Policy,
  run: RunDirectory,
  metrics: MetricsWriter,
  interrupts: Interrupts,
) -> Params:
  if run.is_done(WARM_START):
    return stored_params(settings, policy, run, WARM_START)
  with run.stage(WARM_START):
    params = warm_start(
      settings,
      policy,
      demonstrations.load_rows(run.demonstrations),
      run,
      metrics,
      interrupts,
      epochs=config.warm_start.epochs,
    )
  CONSOLE.print(f"warm start of {num_params(params):,} parameters is done")
  return params


def _score_before(
  policy: Policy,
  warm: Params,
  settings: Settings,
  evaluator: Evaluator,
  service: Service,
) -> None:
  """What the policy is worth before reinforcement learning, and before all."""
  fresh = policy.init(jax.random.key(settings.seed))
  publisher = Publisher(policy, service.versions)
  publisher.publish(fresh, 0)
  evaluator.policy("untrained", "sampled", service)
  publisher.publish(warm, 0)
  for mode in ("greedy", "sampled"):
    evaluator.policy("warm_start", mode, service)


def _devices() -> str:
  found = jax.devices()
  return f"{len(found)} {found[0].platform} device{'s' * (len(found) > 1)}"


def main(argv: Sequence[str]) -> None:
  """Runs the config of the command line; an error is one clear sentence."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  logging.set_verbosity(logging.WARNING)  # orbax tells every file it writes
  try:
    train(_CONFIG.value)
  except AgentRLError as error:
    sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
  app.run(main)
