"""The rollout side of a process, as far as other suites do not run it."""

import subprocess
import sys
import unittest

import pytest

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout import api
from launch.config import settings
from launch.serving import service
from tests.launch import tiny

# google-jetstream is not there, whatever is installed.
_WITHOUT_JETSTREAM = """
import sys

class Missing:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] == "jetstream":
      raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
import launch.train
from agentrl_jax.errors import ConfigError
from launch.serving.service import DRIVERS
from tests.rollout import small

engine = small.engine_of((10,))
with DRIVERS["local"](engine) as driver:
  from agentrl_jax.rollout.api import SamplingParams

  answer = driver.submit([1, 2, 3], SamplingParams(max_tokens=2))
  assert len(answer.result(60).sampled) == 2
try:
  with DRIVERS["jetstream"](engine):
    raise AssertionError("no JetStream, and yet it drives")
except ConfigError as error:
  print(error)
"""


class DriversTest(unittest.TestCase):
  def test_every_driver_of_the_config_can_be_had(self):
    self.assertEqual(set(service.DRIVERS), set(api.DRIVERS))


class ServeTest(unittest.TestCase):
  def test_as_many_forms_may_wait_as_a_run_has_episodes(self):
    """64 are for strangers: a run of more episodes would lose those beyond."""
    found = settings.read_settings(tiny.get_config())
    policy = Policy(found.model, found.compute)
    with service.serve(found, policy, None, driver="local") as served:
      self.assertIsNone(served.generator._compiler._max_waiting)


class WithoutJetStreamTest(unittest.TestCase):
  @pytest.mark.slow
  def test_the_local_driver_needs_none_of_it(self):
    done = subprocess.run(
      [sys.executable, "-c", _WITHOUT_JETSTREAM],
      capture_output=True,
      text=True,
      timeout=300,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn(
      "engine.driver=jetstream: google-jetstream cannot be", done.stdout
    )
    self.assertIn("set engine.driver=local", done.stdout)
