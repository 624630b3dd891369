"""Opens a config's environments: in this process, in containers, at workers.

Environments elsewhere share one event loop for the whole run, which starts the
containers, replaces those that die, and removes them at the end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.bearer_token import read_token
from agentrl_jax.controller.episode import environments_own
from agentrl_jax.controller.evaluation import draw_tasks_during
from agentrl_jax.controller.task_source import IndicesWithout, TaskStream
from agentrl_jax.controller.thread import STOP_S, ControllerThread
from agentrl_jax.data.records import Task, seed_of
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.loading import load_environment
from agentrl_jax.env.mistakes import require_known
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service import remote
from agentrl_jax.service.controller.client import ControllerEnvironment
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.pool import container_pool
from agentrl_jax.service.remote.other_loop import OtherLoopEnvironment
from launch.config.settings import EnvironmentSettings, PlaceSettings, Settings

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def loaded_environments(
  settings: Mapping[str, EnvironmentSettings],
) -> Iterator[dict[str, Environment]]:
  """Loads the environments of the config, by name; leaving closes them.

  They can be played from any event loop: those that need one loop for all
  their work get one, in a thread of its own. Raises `ConfigError` for options
  and mistakes that an environment does not know.
  """
  loaded = {name: _load(name, s) for name, s in settings.items()}
  bound = {name: e for name, e in loaded.items() if e.needs_one_loop}
  free = [e for name, e in loaded.items() if name not in bound]
  with contextlib.ExitStack() as stack:
    if bound:
      thread = stack.enter_context(ControllerThread())
      stack.callback(lambda: thread.run(_close(bound.values()), STOP_S))
      for name, environment in bound.items():
        loaded[name] = OtherLoopEnvironment(
          environment, environment, thread.loop
        )
    stack.callback(lambda: asyncio.run(_close(free)))
    yield loaded


def _load(name: str, settings: EnvironmentSettings) -> Environment:
  try:
    environment = load_environment(settings.target, settings.options)
  except ConfigError as error:
    raise ConfigError(f"environments.{name}: {error}") from error
  require_known(
    settings.mistakes,
    environment.mistakes,
    where=f"environments.{name}.mistakes",
  )
  return environment


async def _close(environments: Iterable[Environment]) -> None:
  for environment in environments:
    try:
      with environments_own(environment.name, "close"):
        await environment.close()
    except EnvironmentFault as fault:  # the run's work is done
      _log.error("an environment is left open: %s", fault, exc_info=fault)


def task_stream(
  settings: Settings,
  environments: Mapping[str, Environment],
  *,
  split: str,
  purpose: str,
  shuffle: bool = True,
) -> TaskStream:
  """Makes a stream of tasks; each purpose has its own order."""
  return TaskStream(
    _indices(settings, environments, split),
    weights={name: settings.environments[name].weight for name in environments},
    split=split,
    seed=_stream_seed(settings, purpose),
    shuffle=shuffle,
  )


def training_stream(
  settings: Settings, environments: Mapping[str, Environment], *, purpose: str
) -> TaskStream:
  """Makes the stream of reinforcement learning.

  It has no task of those that are held out.
  """
  trained_on = _trained_on(settings, environments)
  return task_stream(settings, trained_on, split="train", purpose=purpose)


def tasks_during(
  settings: Settings, environments: Mapping[str, Environment]
) -> list[Task]:
  """Returns the tasks of evaluations during RL, which are not trained on.

  They are of the environments that reinforcement learning has tasks of.
  """
  return draw_tasks_during(
    _trained_on(settings, environments), settings.evaluation, seed=settings.seed
  )


def _trained_on(
  settings: Settings, environments: Mapping[str, Environment]
) -> dict[str, Environment]:
  return {
    name: environment
    for name, environment in environments.items()
    if not settings.environments[name].held_out
  }


def _indices(
  settings: Settings, environments: Mapping[str, Environment], split: str
) -> dict[str, Sequence[int]]:
  """Returns the indices of a split, without what evaluations hold out of it."""
  held_out: dict[str, set[int]] = {name: set() for name in environments}
  for task in tasks_during(settings, environments):
    if task.split == split:
      held_out[task.name].add(task.index)
  return {
    name: IndicesWithout(environment.indices(split), held_out[name])
    if held_out[name]
    else environment.indices(split)
    for name, environment in environments.items()
  }


def _stream_seed(settings: Settings, purpose: str) -> int:
  return seed_of(settings.seed, "tasks", purpose) % 2**31


@contextlib.contextmanager
def placed_environments(settings: Settings) -> Iterator[dict[str, Environment]]:
  """Opens the environments of the config, by name, each in its place.

  Raises `ConfigError` where there is no image, or no engine to run it.
  """
  places = {
    name: s.place
    for name, s in settings.environments.items()
    if s.place.is_elsewhere
  }
  with loaded_environments(settings.environments) as local:
    if not places:
      yield local
      return
    with ControllerThread() as thread, contextlib.ExitStack() as stack:
      docker = (
        stack.enter_context(engines.connect())
        if any(place.owns_containers for place in places.values())
        else None
      )
      remote_ones = {
        name: stack.enter_context(
          # Bounded by deadlines of its own, such as `start_timeout_s`.
          thread.entered(_opening(name, place, settings, docker), STOP_S)
        )
        for name, place in places.items()
      }
      yield local | {
        name: OtherLoopEnvironment(local[name], environment, thread.loop)
        for name, environment in remote_ones.items()
      }


def _opening(
  name: str, place: PlaceSettings, settings: Settings, docker: Any
) -> contextlib.AbstractAsyncContextManager[Environment]:
  if place.controller:
    # By the config's name, which `launch.serve_environments` announces:
    # variants of one environment are different tasks at the controller.
    return contextlib.nullcontext(
      ControllerEnvironment(
        controller=place.controller, name=name, token_file=place.token_file
      )
    )
  if place.worker:
    token = read_token(
      place.token_file, f"environments.{name}.place.token_file="
    )
    return remote.connect(place.worker, token=token)
  return container_pool(
    docker, settings.containers[name], num_containers=place.containers
  )
