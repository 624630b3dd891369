"""Supervised training on experts' episodes, resumable at any step.

The order of rows is a function of the seed and the step, so a checkpoint needs
only the learner's state.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import Rows
from agentrl_jax.garbage import share_freed_memory
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.learner import (
  Learner,
  NotFiniteLimit,
  TrainState,
  make_optimizer,
)
from agentrl_jax.train.metrics import SKIPPED
from agentrl_jax.train.objective import supervised_objective
from agentrl_jax.train.train_batch import TrainBatch
from agentrl_jax.train.weights.checkpoint import Checkpoints
from launch.config.settings import Settings
from launch.reports.curves import HELD_OUT_LOSS
from launch.reports.metrics_file import MetricsWriter
from launch.reports.progress import StageProgress
from launch.run.context import RunContext
from launch.run.demonstrations import HELD_OUT, shuffled
from launch.storage.load_params import first_params, split_params

STAGE = "warm_start"
REPORT_EVERY = 10  # updates
SAVE_EVERY = 200  # updates
MEASURE_EVERY = 50  # updates, the loss of chats that are held out
MEASURED = 4  # micro-batches of them


def warm_start(
  context: RunContext, rows: Rows, metrics: MetricsWriter | None
) -> Params:
  """Trains to the end of the last epoch, from wherever an earlier start got.

  The last checkpoint in the run's folder holds the params that are returned.
  Every learner process calls it with the same rows; process 0 has `metrics`.
  """
  settings, policy = context.settings, context.policy
  order = np.concatenate(
    list(shuffled(rows, seed=settings.seed, epochs=settings.warm_start.epochs))
  )
  is_held = rows.policy_slot[:, 0] == HELD_OUT
  order = order[~is_held[order]]
  size = settings.batch.micro_batch
  held = [
    _train_batch(rows, np.resize(chosen, size))
    for chosen in np.split(
      np.flatnonzero(is_held), size * np.arange(1, MEASURED)
    )
    if len(chosen)
  ]
  num_steps = max(len(order) // size, 1)
  learner = Learner(
    policy,
    supervised_objective(policy, settings.loss),
    make_optimizer(settings.warm_start_optimizer, num_steps),
    policy.mesh or sharding.make_mesh(settings.mesh, slices=settings.slices),
    expert_bias_rate=settings.warm_start_optimizer.expert_bias_rate,
  )
  checkpoints = Checkpoints(
    context.folder.checkpoints(STAGE), keep=2, owner=context.folder.owner(STAGE)
  )
  first, limit = max(checkpoints.steps(), default=0), NotFiniteLimit()
  with _account(metrics, first, num_steps) as account:
    state, frozen = _begin(learner, policy, checkpoints, settings)
    if held and not first:
      account(0, {HELD_OUT_LOSS: learner.loss(state, held, frozen)})
    for step in range(first, num_steps):
      state, report = learner.update(
        state,
        [_train_batch(rows, order[step * size : (step + 1) * size])],
        frozen,
      )
      limit.watch(report, step + 1)
      if held and ((step + 1) % MEASURE_EVERY == 0 or step + 1 == num_steps):
        report[HELD_OUT_LOSS] = learner.loss(state, held, frozen)
      if (
        (step + 1) % REPORT_EVERY == 0
        or step + 1 == num_steps
        or any(report[name] for name in SKIPPED)
      ):
        account(step + 1, report)
        share_freed_memory()
      if (step + 1) % SAVE_EVERY == 0 or step + 1 == num_steps:
        checkpoints.save(state, {})
      context.interrupts.check(functools.partial(_save, checkpoints, state))
  checkpoints.close()
  return policy.whole(state.params, frozen)


@contextlib.contextmanager
def _account(
  metrics: MetricsWriter | None, first: int, num_steps: int
) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
  """Yields a writer of metrics; metrics after step `first` are removed."""
  if metrics is None:
    yield lambda step, report: None
    return
  metrics.truncate_after(STAGE, first or -1)
  with StageProgress(STAGE, num_steps, initial_step=first) as show:

    def account(step: int, report: Mapping[str, float]) -> None:
      metrics.write(step, report, STAGE)
      show.update(step, report)

    yield account


def _begin(
  learner: Learner, policy: Policy, checkpoints: Checkpoints, settings: Settings
) -> tuple[TrainState, Params | None]:
  """Returns the state of an earlier start, or the first; and frozen params."""
  if checkpoints.steps() and not settings.lora:
    return checkpoints.restore(learner.abstract_state())[0], None
  first = first_params(settings, policy)
  trained, frozen = split_params(settings, policy, first)
  if checkpoints.steps():
    return checkpoints.restore(learner.abstract_state())[0], frozen
  return learner.init(trained), frozen


def _save(checkpoints: Checkpoints, state: TrainState) -> str:
  if int(state.version) not in checkpoints.steps():
    checkpoints.save(state, {})
  checkpoints.close()
  return f"checkpoint of {STAGE} step {int(state.version)}"


def _train_batch(rows: Rows, chosen: np.ndarray) -> TrainBatch:
  """Returns packed rows in which every demonstrated token weighs the same."""
  batch = Batch(**{name: x[chosen] for name, x in rows.arrays().items()})
  weight_BT = batch.mask.astype(np.float32)
  return TrainBatch(batch, weight_BT)
