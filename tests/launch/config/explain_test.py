"""Tests of `launch.config.explain`: every key is told of, from the code."""

import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from configs import base, finetune
from configs.base import flat_keys
from launch.config import explain


class ExplainTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      "loss.clip_high",
      "0.2",
      "above 0",
      "relative rise",
      "train/config/loss.py, LossConfig",
    ),
    ("engine.driver", "'jetstream'", "jetstream, local"),
    ("queue.order", "'finished'", "finished, started"),
    ("cross_policy.draw_per", "'turn'", "turn, trajectory, never"),
    ("waits.reply_timeout_s", "300.0", "seconds", "reply of the environment"),
    ("chat.thinking", "True or False"),
    ("tasks.weights.dbbench", "1.0", "relative frequency"),
    ("environments.dbbench.options.server", "see environments.dbbench"),
  )
  def test_says(self, key, *texts):
    said = explain.explain(key, base.get_config())
    for text in texts:
      self.assertIn(text, said)

  def test_a_section_is_a_line_for_each_key(self):
    lines = explain.explain("queue", base.get_config()).splitlines()
    self.assertLen(lines, len(base.get_config().queue))
    self.assertTrue(all(line.startswith("queue.") for line in lines))
    table = explain.table(base.get_config())
    for key, _ in flat_keys(base.get_config()):
      self.assertRegex(table, rf"(?m)^{key} ")

  def test_a_config_has_its_own_keys_and_values(self):
    config = finetune.get_config("folder")
    said = explain.explain("train.steps", config)
    self.assertRegex(said, r"value +200\n +default +\d+\n")
    lines = explain.table(config, "environments.questions.options.")
    self.assertRegex(lines, r"max_turns +1 .*questions:Questions")
    lines = explain.table(config, "train.")
    self.assertRegex(lines, r"train.steps +\* 200 ")
    self.assertRegex(lines, r"train.step_timeout_s +\d")
    explain.explain("environments.questions.options.source", config)

  @pytest.mark.smoke
  def test_a_key_that_is_not_there(self):
    with self.assertRaisesRegex(ConfigError, r"did you mean loss\.clip_high"):
      explain.explain("loss.clip_hihg", base.get_config())
