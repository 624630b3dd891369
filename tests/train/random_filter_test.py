"""The random filter keeps as many groups as have a signal, by chance."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.train.random_filter import keep_random_groups
from configs.ablations import task_weights
from launch.config.settings import read_settings

# Groups 0 to 3 with two attempts each; group 4 has none.
GROUP = np.arange(8) // 2


def kept(reward, tokens=100, valid=(True,) * 8, **settings):
  static = ("num_groups", "share", "rule")
  keep = jax.jit(keep_random_groups, static_argnames=static)
  return np.asarray(
    keep(
      reward_N=np.array(reward, np.float32),
      group_N=GROUP,
      num_tokens_N=np.full(8, tokens),
      num_groups=5,
      valid_N=np.array(valid),
      **settings,
    )
  )


class KeepRandomGroupsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((0, 0, 0, 0, 1, 1, 1, 1), 0),
    ((0, 1, 0, 0, 1, 1, 1, 1), 1),
    ((0, 1, 1, 0, 0, 1, 1, 1), 3),
    ((0, 1, 1, 0, 0, 1, 1, 0), 4),
  )
  def test_keeps_as_many_as_have_a_signal(self, reward, number):
    for tokens in range(20):
      keep_M = kept(reward, tokens)
      self.assertEqual(keep_M.sum(), number)
      self.assertFalse(keep_M[4])

  @parameterized.parameters((1.0, 3), (0.9, 2), (0.5, 1), (0.0, 0))
  def test_keeps_as_many_as_hold_a_share_of_the_signal(self, share, number):
    choices = set()
    for tokens in range(20):
      keep_M = kept((0, 1, 0, 0.9, 0, 0.1, 1, 1), tokens, share=share)
      self.assertEqual(keep_M.sum(), number)
      choices.add(tuple(keep_M.tolist()))
    self.assertGreater(len(choices), 1 if number else 0)

  @parameterized.parameters((0.25, 1), (0.5, 2), (1.0, 4))
  def test_keeps_as_many_as_the_top_share(self, share, number):
    choices = set()
    for tokens in range(20):
      keep_M = kept(
        (0, 1, 0, 0, 1, 1, 1, 1), tokens, share=share, rule="top_share"
      )
      self.assertEqual(keep_M.sum(), number)
      choices.add(tuple(keep_M.tolist()))
    self.assertGreater(len(choices), 0 if number == 4 else 1)

  def test_another_rule_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "rule='top'.*top_signal"):
      kept((0,) * 8, rule="top")

  def test_rewards_do_not_decide_which(self):
    choices = set()
    for tokens in range(20):
      keep_M = kept((0, 1, 1, 1, 0, 0, 1, 0), tokens)
      other_M = kept((0, 0, 1, 0, 1, 0, 1, 1), tokens)
      np.testing.assert_array_equal(keep_M, other_M)
      choices.add(tuple(keep_M.tolist()))
    self.assertGreater(len(choices), 3)

  def test_groups_that_were_lost_are_never_kept(self):
    for tokens in range(20):
      keep_M = kept(
        (0, 1, 0, 1, 1, 1, 0, 1), tokens, (False,) * 2 + (True,) * 6
      )
      np.testing.assert_array_equal(keep_M[[0, 4]], [False, False])
      self.assertEqual(keep_M.sum(), 2)

  def test_the_config_finds_it(self):
    settings = read_settings(task_weights.get_config("random_kept"))
    self.assertEqual(
      settings.advantage.custom_function("keep").function, keep_random_groups
    )


if __name__ == "__main__":
  absltest.main()
