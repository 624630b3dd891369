"""A tiny run of two tasks, of which one breaks while a file is there."""

import asyncio
import contextlib
import os
import pathlib

from agentrl_jax.errors import EnvironmentFault
from configs import environments
from environments.arithmetic.environment import Arithmetic
from tests.launch import tiny

SWITCH = "AGENTRL_TEST_BREAKS"  # variable: the file, whose text says how


class Breakable(Arithmetic):
  """Fails or hangs when a session is opened, as the file says."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    how = _read(pathlib.Path(os.environ[SWITCH]))
    if how == "hangs":
      await asyncio.sleep(3600)
    if how:
      raise EnvironmentFault("broken, as told")
    async with super().open(task, seed=seed) as session:
      yield session


def _read(switch):
  return switch.read_text() if switch.exists() else ""


def get_config():
  c = tiny.get_config()
  c.name = "broken"
  with c.unlocked():
    c.tasks.weights.breakable = 1.0
    c.environments.breakable = environments.entry(
      "tests.launch.run.broken_task:Breakable", mistakes={"wrong_sum": 0.3}
    )
  c.tasks.names = ("arithmetic", "breakable")
  c.train.steps = 100_000
  c.admission.update(groups_per_step=4, max_concurrent_groups=8)
  c.queue.max_groups = 8
  return c
