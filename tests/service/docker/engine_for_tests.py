"""Docker engine of the tests: a real one, or a skip with its reason."""

import contextlib
import fcntl
import os
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from agentrl_jax.service.docker import engine
from agentrl_jax.service.docker.orphans import OWNER_LABEL, current_owner
from environments import images

OF_THIS_PROCESS = f"{OWNER_LABEL}={current_owner()}"


def connect_or_skip(test: type[unittest.TestCase]):
  """Connects to an engine for a class of tests."""
  try:
    return test.enterClassContext(engine.connect())
  except ConfigError as error:
    raise unittest.SkipTest(f"{error}, or run .ci/run") from error


def base_or_skip(docker) -> str:
  """Returns the base image that AGENTRL_BASE_IMAGE names."""
  base = os.environ.get("AGENTRL_BASE_IMAGE", "python:3.11-slim")
  if not docker.images.list(base):
    raise unittest.SkipTest(
      f"no base image {base}: `docker pull` it, or name another one in "
      "AGENTRL_BASE_IMAGE (.ci/make_base makes one without a registry)"
    )
  return base


def build_or_skip(docker, name: str) -> str:
  """Builds the environment's image on that base."""
  base = base_or_skip(docker)
  with in_turn(f"image-{name}"):  # others find it built
    return images.build_image(docker, name, base=base)


@contextlib.contextmanager
def in_turn(work: str):
  """Keeps the processes of this user from doing the same work at once."""
  name = f"agentrl-{os.getuid()}-{work}.lock"
  with (pathlib.Path(tempfile.gettempdir()) / name).open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield


class DockerTestCase(unittest.IsolatedAsyncioTestCase):
  """Base of tests with an engine, and with an environment's image if named."""

  environment_name = ""  # builds no image

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    if cls.environment_name:
      cls.image = build_or_skip(cls.docker, cls.environment_name)

  def containers(self, label=OF_THIS_PROCESS):
    """Lists the containers with a label, by default those of this process."""
    return self.docker.containers.list(
      all=True, filters={"label": label}, ignore_removed=True
    )
