"""Connection to the Docker engine, and blocking calls in threads.

The SDK blocks, so its calls run in threads. `to_the_end` completes a call even
if its caller is cancelled: otherwise the engine could create a container after
its owner has stopped looking for it.
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

REQUEST_S = 60  # timeout of one request
REMOVE_S = 20.0  # timeout of removing a container
_POLL_S = 0.1

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def connect() -> Iterator[docker.DockerClient]:
  """Connects to the engine that DOCKER_HOST names, or to the local one.

  Raises `ConfigError` if none answers.
  """
  try:
    _require_listener()
    engine = docker.from_env(timeout=REQUEST_S)
  except (docker.errors.DockerException, OSError) as error:
    raise ConfigError(_no_engine(error)) from error
  with contextlib.closing(engine):
    try:
      engine.ping()
    except (docker.errors.DockerException, OSError) as error:
      raise ConfigError(_no_engine(error)) from error
    yield engine


async def to_the_end(
  call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
  """Runs a blocking call in a thread; a cancellation waits for its end.

  The wait is bounded: every request to the engine has a deadline.
  """
  calling = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
  try:
    return await asyncio.shield(calling)
  except asyncio.CancelledError:
    await asyncio.wait([calling])
    if not calling.cancelled():
      calling.exception()  # retrieved, or the loop logs a warning
    raise


@contextlib.contextmanager
def starting(image: str) -> Iterator[None]:
  """Translates the SDK's errors while a container of `image` starts.

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
  """Removes a container, if any, and waits until it is gone.

  Raises `EnvironmentFault` if the engine has not removed it within `REMOVE_S`.
  """
  given_up_at = time.monotonic() + REMOVE_S
  while True:
    try:
      engine.api.remove_container(name, force=True, v=True)
    except docker.errors.NotFound:
      return
    except (docker.errors.DockerException, OSError) as error:
      # Another process may be removing it: try again.
      if time.monotonic() > given_up_at:
        raise EnvironmentFault(
          f"container {name} is left behind: {error}. Once the engine answers, "
          "run `python -m agentrl_jax.service.docker.orphans`"
        ) from error
      time.sleep(_POLL_S)


def _require_listener() -> None:
  """Raises OSError without a listener: the SDK leaks a socket."""
  scheme, _, path = _address().partition("://")
  if scheme == "unix":
    with socket.socket(socket.AF_UNIX) as probe:
      probe.settimeout(REQUEST_S)
      probe.connect(path)


def _address() -> str:
  return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def _no_engine(error: Exception) -> str:
  return (
    f"no Docker engine answers at {_address()} ({str(error)[:200]}); start one "
    "(`dockerd`, or Docker Desktop), or set DOCKER_HOST to its address"
  )
