"""Tests docs/architecture.md: its run in Python, and its lists of files."""

import asyncio
import contextlib
import os
import pathlib
import re
import sys
import tempfile
import threading

import pytest

from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.data.records import EpisodeSpec, Task
from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.train.weights.publish import Publisher

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ("agentrl_jax", "environments", "launch")


pytestmark = pytest.mark.slow


def script() -> str:
  """The page's run, on the smallest config there is."""
  (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  changed = code.replace(
    "from configs import quickstart",
    "from tests.launch import tiny as quickstart",
  )
  assert changed != code
  return changed


def listed(name: str) -> set[str]:
  """The files of a list on the page."""
  pattern = rf"<!-- {name} -->\n(.*?)<!-- end -->"
  (text,) = re.findall(pattern, PAGE.read_text(), re.DOTALL)
  return set(re.findall(r"`([a-z_/]+\.py)`", text))


class Trace:
  """The source files whose functions threads enter, while `is_on`."""

  def __init__(self):
    self.files: set[str] = set()
    self.is_on = False

  def note(self, frame, event, argument):
    del argument
    path = frame.f_code.co_filename
    if not self.is_on or event != "call" or not path.startswith(str(ROOT)):
      return
    name = str(pathlib.Path(path).relative_to(ROOT))
    if name.startswith(SOURCE) and frame.f_code.co_name != "<module>":
      self.files.add(name)

  @contextlib.contextmanager
  def installed(self):
    """Follows this thread, and those that start meanwhile."""
    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(self.note)
    threading.setprofile(self.note)
    try:
      yield self
    finally:
      sys.setprofile(before[0])
      threading.setprofile(before[1])


@pytest.fixture(scope="module")
def names():
  """The global names of the page's run, after its end."""
  with tempfile.TemporaryDirectory() as folder:
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
      found = {}
      exec(compile(script(), str(PAGE), "exec"), found)  # noqa: S102
      yield found
    finally:
      os.chdir(before)


@pytest.mark.smoke
def test_the_run_of_the_page_trains_and_evaluates(names):
  assert int(names["state"].version) == names["config"].train.steps
  evaluations = names["run"].folder.root / "evaluations"
  assert [p.name for p in evaluations.glob("*.json")] == ["rl_greedy.json"]


def test_the_run_of_the_page_is_forty_lines():
  lines = [line for line in script().splitlines() if line.strip()]
  assert len(lines) <= 45


def test_files_of_one_turn(names):
  with Trace().installed() as trace:
    asyncio.run(_play_twice(names, trace))
  assert sorted(trace.files) == sorted(listed("turn"))


def test_files_of_one_update(names):
  settings, policy = names["run"].settings, names["run"].policy
  weights = ServedWeights(settings.engine.num_policy_slots)
  publisher, state = Publisher(policy, weights), names["state"]
  with Trace().installed() as trace:
    for trace.is_on in (False, True):  # the first time may compile
      batches, _ = names["builder"].build(names["batch"], state.params)
      state, _ = names["learner"].update(state, batches)
      publisher.publish(state.params, int(state.version))
  assert sorted(trace.files) == sorted(listed("update"))


async def _play_twice(names, trace: Trace) -> None:
  """Plays one episode to compile and another to trace."""
  settings, policy = names["run"].settings, names["run"].policy
  weights = ServedWeights(settings.engine.num_policy_slots)
  Publisher(policy, weights).publish(names["state"].params, 1)
  driver = LocalDriver(RolloutEngine(policy, settings.engine, weights))
  player = PolicyPlayer(
    environments=names["environments"],
    generator=EngineGenerator(driver, deadline_s=600.0),
    codec=names["codec"],
    limits=settings.episode,
    sampling=settings.sampling,
    waits=settings.waits,
  )
  async with driver.serving():
    for trace.is_on in (False, True):
      await player.play(
        EpisodeSpec(
          task=Task("arithmetic", "train", 0),
          group_id="g",
          attempt=int(trace.is_on),
          seed=int(trace.is_on),
        )
      )
    trace.is_on = False
  driver.close()
