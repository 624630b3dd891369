"""A run whose policy cannot but call: it samples and learns under a grammar."""

import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from agentrl_jax.env.tools import ToolMistake, read_arguments
from environments.arithmetic.environment import ADD, ANSWER
from launch.config.chat import codec_of
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from launch.storage.run_directory import RunDirectory
from launch.viewing.trajectory_index import TrajectoryIndex
from tests.launch import tiny

STEPS = 1


def config_of(folder):
  config = tiny.get_config()
  config.workdir = folder
  config.compile_cache = ""  # which would outlive its folder here
  config.train.steps = STEPS
  config.sampling.calls = "required"
  config.episode.max_answer_tokens = 80
  config.warm_start.num_demonstrations = 300
  config.loss.kl_coefficient = 0.1
  # With a critic even an attempt that fails as all others do teaches.
  config.model.value_head = True
  config.advantage.estimator = "gae"
  config.loss.value_coefficient = 0.5
  return config


def test_calls_are_required_and_a_critic_is_trained():
  settings = read_settings(config_of(""))
  assert settings.sampling.calls == "required"
  assert settings.loss.has_critic and settings.advantage.uses_critic


@pytest.mark.full
class ConstrainedRunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    config = config_of(folder)
    train(config)
    cls.run_root = pathlib.Path(folder) / config.name
    cls.settings = read_settings(config)

  def groups(self):
    run = RunDirectory(self.run_root)
    paths = [run.trajectories(version) for version in range(STEPS)]
    paths.append(run.trajectories_of("rl", "greedy"))
    return [group for path in paths for group in read_groups(path)]

  def test_every_answer_that_came_to_its_end_is_a_call_that_can_be_played(self):
    codec = codec_of(self.run_root, self.settings.chat)
    turns = [
      turn
      for group in self.groups()
      for trajectory in group.trajectories
      for turn in trajectory.turns
    ]
    ended = [t for t in turns if t.sampled[-1] in codec.stop_tokens]
    self.assertGreater(len(ended), len(turns) // 3)
    for turn in turns:
      self.assertIn("%json", turn.grammar)
    for turn in ended:
      calls = codec.read(turn.sampled).tool_calls
      self.assertNotEmpty(calls)
      for call in calls:
        self.assertNotIsInstance(
          read_arguments(call, (ADD, ANSWER)), ToolMistake
        )

  def test_the_learner_s_distribution_is_the_sampler_s(self):
    rows = read_metrics(self.run_root / "metrics.jsonl")
    first = next(row.values for row in rows if row.stage == "rl")
    self.assertLess(first["policy/engine_drift"], 1e-5)
    self.assertLess(first["policy/kl_to_reference"], 1e-6)

  def test_the_learner_s_view_is_kept_with_them(self):
    index = TrajectoryIndex(self.run_root)
    trained = [t for t in index.listing().trajectories if t.update == 0]
    self.assertNotEmpty(trained)
    for listed in trained:
      kept = index.trajectory(listed.id)
      turns = kept.trajectory.turns
      self.assertLen(kept.learned, len(turns))
      for turn, learned in zip(turns, kept.learned, strict=True):
        # The first update starts from the params that sampled it.
        np.testing.assert_allclose(
          learned.logprob, turn.behavior_logprob, atol=1e-4
        )
        self.assertTrue(np.isfinite(learned.advantage).all())
        self.assertLen(learned.advantage, len(turn.sampled))
