"""The Docker engine that containers and images are asked of.

The SDK blocks, so its calls are made in threads, here alone: `to_the_end` lets
a call that was begun finish even if whoever awaits it is cancelled. Otherwise a
container could come to be after its owner stopped looking.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import docker
import docker.errors

from agentrl_jax.errors import ConfigError, EnvironmentFault

REQUEST_S = 60  # for the engine to answer one request
REMOVE_S = 20.0  # until a container counts as left behind
_POLL_S = 0.1

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def connect() -> Iterator[docker.DockerClient]:
  """The engine that DOCKER_HOST names, or the local one.

  Raises `ConfigError` if none answers.
  """
  try:
    _require_listener()
    engine = docker.from_env(timeout=REQUEST_S)
  except (docker.errors.DockerException, OSError) as error:
    raise ConfigError(_nobody(error)) from error
  with contextlib.closing(engine):
    try:
      engine.ping()
    except (docker.errors.DockerException, OSError) as error:
      raise ConfigError(_nobody(error)) from error
    yield engine


async def to_the_end(
  call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
  """Makes a blocking call in a thread; cancellation waits for it to return.

  The wait is bounded: every request to the engine has its deadline.
  """
  calling = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
  try:
    return await asyncio.shield(calling)
  except asyncio.CancelledError:
    await asyncio.wait([calling])
    if not calling.cancelled():
      calling.exception()  # retrieved, or the loop complains of it
    raise


@contextlib.contextmanager
def starting(image: str) -> Iterator[None]:
  """Says why a container of `image` cannot be started.

  Raises `ConfigError` if there is no such image, else `EnvironmentFault`.
  """
  try:
    yield
  except docker.errors.ImageNotFound as error:
    raise ConfigError(
      f"the engine has no image {image!r}; build it with "
      "`python -m launch.build_images <environment>`, or pull it"
    ) from error
  except (docker.errors.DockerException, OSError) as error:
    raise EnvironmentFault(
      f"the engine cannot start {image}: {error}"
    ) from error


def remove_container(engine: docker.DockerClient, name: str) -> None:
  """Removes a container, if there is one, and waits until it is gone.

  Raises `EnvironmentFault` if the engine has not done it within `REMOVE_S`.
  """
  given_up_at = time.monotonic() + REMOVE_S
  while True:
    try:
      engine.api.remove_container(name, force=True, v=True)
    except docker.errors.NotFound:
      return
    except (docker.errors.DockerException, OSError) as error:
      # Somebody else may be removing it just now: it is looked for once more.
      if time.monotonic() > given_up_at:
        raise EnvironmentFault(
          f"container {name} is left behind: {error}. Once the engine answers, "
          "run `python -m agentrl_jax.env.docker.orphans`"
        ) from error
      time.sleep(_POLL_S)


def _require_listener() -> None:
  """Raises OSError if nobody listens; the SDK then forgets an open socket."""
  scheme, _, path = _where().partition("://")
  if scheme == "unix":
    with socket.socket(socket.AF_UNIX) as probe:
      probe.settimeout(REQUEST_S)
      probe.connect(path)


def _where() -> str:
  return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def _nobody(error: Exception) -> str:
  return (
    f"no Docker engine answers at {_where()} ({str(error)[:200]}); start one "
    "(`dockerd`, or Docker Desktop), or say where it is in DOCKER_HOST"
  )
