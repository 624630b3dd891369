"""A run whose rollout engine breaks ends with the cause, and can go on."""

import pathlib
import tempfile
from unittest import mock

import pytest
from absl.testing import parameterized

from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.engine.engine import RolloutEngine
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.launch import tiny


def config_of(folder, driver):
  c = tiny.get_config()
  c.workdir = folder
  c.compile_cache = ""
  c.train.steps = 4
  # No wait ends within the test: only the engine's own word ends the run.
  c.train.batch_timeout_s = c.retry.backoff_s = 3600.0
  c.checkpoint.every = 1
  c.engine.driver = driver
  return c


@pytest.mark.parametrize("driver", ["jetstream", "local"])
def test_no_wait_of_the_learner_ends_within_the_test(driver):
  config = config_of("", driver)
  read_settings(config)
  assert config.train.batch_timeout_s > 300


@pytest.mark.slow
@pytest.mark.timeout(300)
class EngineFaultTest(parameterized.TestCase):
  @parameterized.parameters("jetstream", "local")
  def test_the_run_ends_with_the_cause_and_goes_on_later(self, driver):
    config = config_of(self.enterContext(tempfile.TemporaryDirectory()), driver)
    metrics = pathlib.Path(config.workdir) / "tiny" / "metrics.jsonl"

    def updates():
      rows = read_metrics(metrics) if metrics.exists() else []
      return [row.step for row in rows if row.stage == "rl"]

    read = RolloutEngine.read

    def break_after_two_updates(engine, step):
      if len(updates()) >= 2:
        raise ZeroDivisionError("on purpose")
      return read(engine, step)

    with (
      mock.patch.object(RolloutEngine, "read", break_after_two_updates),
      self.assertRaisesRegex(GeneratorFault, "no more requests.*on purpose"),
    ):
      train(config)
    train(config)
    self.assertEqual(updates(), [1, 2, 3, 4])
