"""Where environments are played: in this process, in containers, at workers.

What plays elsewhere does so in one event loop for the whole run, which starts
the containers, replaces those that die, and removes them at the end.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from agentrl_jax.controller.service.client import ControllerEnvironment
from agentrl_jax.controller.thread import STOP_S, ControllerThread
from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.env import remote
from agentrl_jax.env.docker import engine as engines
from agentrl_jax.env.docker.pool import container_pool
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.remote.other_loop import OtherLoopEnvironment
from agentrl_jax.errors import ConfigError
from launch.config.settings import PlaceSettings, Settings
from launch.run.demonstrations import loaded_environments


@contextlib.contextmanager
def placed_environments(settings: Settings) -> Iterator[dict[str, Environment]]:
  """The environments of the config, by name, each where it is to be played.

  Raises `ConfigError` where there is no image, or no engine to run it.
  """
  away = {
    name: s.place
    for name, s in settings.environments.items()
    if s.place.is_elsewhere
  }
  with loaded_environments(settings.environments) as here:
    if not away:
      yield here
      return
    with ControllerThread() as thread, contextlib.ExitStack() as stack:
      docker = (
        stack.enter_context(engines.connect()) if settings.containers else None
      )
      there = {
        name: stack.enter_context(
          _entered(thread, _opening(name, place, settings, here[name], docker))
        )
        for name, place in away.items()
      }
      yield here | {
        name: OtherLoopEnvironment(here[name], environment, thread.loop)
        for name, environment in there.items()
      }


def _opening(
  name: str,
  place: PlaceSettings,
  settings: Settings,
  here: Environment,
  docker: Any,
) -> contextlib.AbstractAsyncContextManager[Environment]:
  if place.controller:
    # By the config's name, which `launch.serve_environments` announces:
    # variants of one environment are different tasks at the controller.
    return contextlib.nullcontext(
      ControllerEnvironment(controller=place.controller, name=name)
    )
  splits = _splits(here)
  if place.worker:
    return remote.connect(place.worker, splits=splits)
  return container_pool(
    docker,
    settings.containers[name],
    num_containers=place.containers,
    splits=splits,
  )


@contextlib.contextmanager
def _entered(
  thread: ControllerThread,
  opening: contextlib.AbstractAsyncContextManager[Environment],
) -> Iterator[Environment]:
  """An asynchronous context, held open in the thread's loop."""
  # Bounded by their own deadlines, such as `start_timeout_s`; these are for the
  # worst.
  environment = thread.run(opening.__aenter__(), STOP_S)
  try:
    yield environment
  finally:
    thread.run(opening.__aexit__(None, None, None), STOP_S)


def _splits(environment: Environment) -> tuple[str, ...]:
  """Those that the environment has, of those that are played here."""
  return tuple(
    split for split in (*SPLITS, LOADED_SPLIT) if _has(environment, split)
  )


def _has(environment: Environment, split: str) -> bool:
  try:
    environment.indices(split)
  except ConfigError:
    return False
  return True
