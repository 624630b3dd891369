"""OS interaction keeps the contract, and the expert solves every kind."""

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from environments.os_interaction import OSInteraction
from environments.os_interaction.tasks.generator import KINDS
from tests.environments.os_interaction.engines import NAME, InSandbox, OnDocker
from tests.environments.playing import play


class Contract(SessionContract):
  num_tasks = 2
  test_splits_share_no_problem = None  # in `generator_test`, without machines


@pytest.mark.docker
@pytest.mark.slow
class SandboxContractTest(InSandbox, Contract):
  pass


@pytest.mark.docker
@pytest.mark.full
class DockerContractTest(OnDocker, Contract):
  pass


class EveryKind:
  """Plays each kind of generated task, right and wrong."""

  num_tasks = 1  # of each kind and level

  async def test_expert_solves_it(self):
    for environment, kind, level in self.environments():
      for split in SPLITS:
        for index in range(self.num_tasks):
          *_, step = await play(environment, Task(NAME, split, index))
          with self.subTest(kind=kind, level=level, split=split, index=index):
            self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1))

  async def test_wrong_play_fails(self):
    for environment, kind, level in self.environments():
      for index in range(self.num_tasks):
        task = Task(NAME, "train", index)
        *_, step = await play(environment, task, mistakes=self.wrong(kind))
        with self.subTest(kind=kind, level=level, index=index):
          self.assertEqual((step.status, step.reward), (Status.COMPLETED, 0))

  def environments(self):
    engine = self.open_engine()
    for kind in KINDS:
      for level in self.levels:
        environment = OSInteraction(
          engine=engine, kinds=(kind,), difficulty=(level, level)
        )
        yield environment, kind, level

  def wrong(self, kind):
    """Mistakes: a wrong number for questions, no work for chores."""
    if KINDS[kind].__module__.endswith("chores"):
      return {"no_look": 1.0}
    return {"off_by_one": 1.0, "sentence": 1.0}


@pytest.mark.docker
@pytest.mark.slow
class EveryKindInSandboxTest(EveryKind, InSandbox):
  levels = (2,)


@pytest.mark.docker
@pytest.mark.full
class EveryKindOnDockerTest(EveryKind, OnDocker):
  levels = (1, 2, 3)
  num_tasks = 3


@pytest.mark.docker
@pytest.mark.slow
class WarmMachinesOnDockerTest(OnDocker):
  async def test_machines_are_removed(self):
    environment = self.make_environment(num_warm=2)
    await play(environment, Task(NAME, "train", 0))
    await environment.close()
    label = f"agentrl_jax.session={environment._engine._session}"
    self.assertEqual(self.containers(label), [])
