"""The same tasks are played here, in containers and at a worker."""

import asyncio
import contextlib
import re
import subprocess
import sys
import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.service.docker.orphans import OWNER_LABEL, current_owner
from agentrl_jax.service.remote.other_loop import OtherLoopEnvironment
from configs import quickstart
from environments.images import ROOT
from launch.config.settings import read_settings
from launch.run.environments import (
  placed_environments,
  task_stream,
  training_stream,
)
from tests.service.docker.engine_for_tests import build_or_skip, connect_or_skip

TASK = Task("webshop", "test", 0)


def settings(**place):
  config = quickstart.get_config()
  config.tasks.names = ("webshop",)
  config.environments.webshop.place.update(place)
  return read_settings(config)


def play(environment):
  """The expert's attempt, in an event loop of its own."""

  async def played():
    expert = environment.expert(TASK, seed=0, mistakes={})
    async with environment.open(TASK, seed=0) as session:
      steps = [await session.reset()]
      while steps[-1].status is Status.RUNNING:
        steps.append(await session.step(expert.answer(steps[-1].messages)))
    return steps

  return asyncio.run(played())


class HeldOutTest(unittest.TestCase):
  def test_a_task_that_is_held_out_is_never_drawn(self):
    config = quickstart.get_config()
    for held_out, drawn in (
      ((), {"dbbench", "webshop"}),
      (("webshop",), {"dbbench"}),
    ):
      config.tasks.held_out = held_out
      made = read_settings(config)
      with placed_environments(made) as environments:
        stream = training_stream(made, environments, purpose="rl")
        tasks = {next(stream)[1].name for _ in range(50)}
        shown = task_stream(
          made, environments, split="train", purpose="warm_start"
        )
        demonstrated = {next(shown)[1].name for _ in range(50)}
      self.assertEqual(tasks, drawn)
      self.assertEqual(set(stream.shares()), drawn)
      self.assertEqual(demonstrated, {"dbbench", "webshop"})


class PlacesTest(unittest.TestCase):
  def play_at(self, **place):
    """Two attempts, each in a loop of its own, as a run makes them."""
    with placed_environments(settings(**place)) as environments:
      environment = environments["webshop"]
      self.assertIsInstance(environment, OtherLoopEnvironment)
      return play(environment), play(environment)

  def require_as_here(self, attempts):
    with placed_environments(settings()) as environments:
      here = play(environments["webshop"])
    self.assertIs(here[-1].status, Status.COMPLETED)
    self.assertEqual(attempts, (here, here))

  @pytest.mark.slow
  def test_at_a_worker(self):
    with worker() as url:
      self.require_as_here(self.play_at(worker=url))

  @pytest.mark.slow
  @pytest.mark.docker
  def test_in_containers(self):
    docker = connect_or_skip(type(self))
    image = build_or_skip(docker, "webshop")
    self.require_as_here(self.play_at(containers=2, image=image))
    label = f"{OWNER_LABEL}={current_owner()}"
    left = docker.containers.list(
      all=True, filters={"label": label}, ignore_removed=True
    )
    self.assertEqual(left, [], "a container is left behind")

  def test_an_image_is_found_by_the_environments_folder(self):
    found = settings(containers=1, options=("num_test=7",)).containers
    self.assertEqual(found["webshop"].image, "agentrl_jax/webshop")
    self.assertEqual(found["webshop"].options["num_test"], 7)
    self.assertEqual(found["webshop"].options["catalogue_size"], 45)

  @pytest.mark.slow
  def test_at_the_workers_of_a_controller(self):
    with controller() as url, worker(f"--controller={url}"):
      self.require_as_here(self.play_at(controller=url))


def worker(*flags):
  """A worker of the quickstart's shop, in a process of its own; its URL."""
  options = quickstart.get_config().environments.webshop.options.to_dict()
  return serving(
    "agentrl_jax.service.worker",
    "--environment=environments.webshop:WebShop",
    "--port=0",
    *[f"--option={key}={value!r}" for key, value in options.items()],
    *flags,
  )


def controller():
  """A controller, in a process of its own; its URL."""
  return serving("agentrl_jax.service.controller", "--port=0", "--grpc-port=0")


@contextlib.contextmanager
def serving(module, *flags):
  """Runs a server until the context is left; the address that it logs."""
  process = subprocess.Popen(
    [sys.executable, "-m", module, *flags],
    cwd=ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    for line in process.stderr:
      if found := re.search(r"http://\S+/api", line):
        yield found.group()
        break
    else:
      raise AssertionError(f"{module} has ended")
  finally:
    process.terminate()
    process.communicate(timeout=60)
