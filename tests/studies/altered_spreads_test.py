"""Altered advantages have the spread that an ablation asks for."""

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax import losses
from launch.config.settings import read_settings
from studies.altered_spreads import altered_group_advantage
from studies.configs import spreads

NUM_GROUPS = 400
GROUP = np.repeat(np.arange(NUM_GROUPS), 8)
TASK = GROUP % 2
REWARD = np.random.default_rng(0).integers(0, 2, GROUP.size).astype(np.float32)
VALID = np.ones(GROUP.size, bool)


def altered(tokens=3, **settings):
  function = jax.jit(altered_group_advantage, static_argnames=("num_groups",))
  return np.asarray(
    function(
      REWARD,
      GROUP,
      TASK,
      np.full(GROUP.size, tokens),
      VALID,
      num_groups=NUM_GROUPS,
      **settings,
    )
  )


PLAIN = np.asarray(
  losses.group_advantage(
    REWARD, GROUP, num_groups=NUM_GROUPS, valid_N=VALID, scale_by_std=False
  )
)


class AlteredGroupAdvantageTest(parameterized.TestCase):
  def test_without_settings_it_is_the_distance_from_the_mean(self):
    np.testing.assert_array_equal(altered(), PLAIN)

  @parameterized.parameters(0, 1)
  def test_one_task_alone_is_made_smaller(self, task):
    advantage_N = altered(task=task, factor=0.25)
    is_altered_N = task == TASK
    np.testing.assert_array_equal(
      advantage_N[is_altered_N], PLAIN[is_altered_N] / 4
    )
    np.testing.assert_array_equal(
      advantage_N[~is_altered_N], PLAIN[~is_altered_N]
    )

  def test_a_share_of_its_groups_is_paid(self):
    advantage_N = altered(paid=0.25)
    np.testing.assert_array_equal(advantage_N[TASK == 1], PLAIN[TASK == 1])
    is_paid_N = advantage_N == PLAIN
    by_group = is_paid_N[TASK == 0].reshape(-1, 8)
    for group in by_group:  # whole groups, or none of their attempts
      self.assertIn(group.sum(), (0, 8))
    self.assertBetween(by_group[:, 0].mean(), 0.15, 0.35)
    spread = advantage_N[TASK == 0].std() / advantage_N[TASK == 1].std()
    self.assertBetween(spread, 0.4, 0.6)

  def test_the_batch_decides_which_are_paid(self):
    np.testing.assert_array_equal(altered(paid=0.25), altered(paid=0.25))
    self.assertFalse((altered(paid=0.25) == altered(4, paid=0.25)).all())

  @parameterized.parameters(*spreads.ARMS)
  def test_the_config_finds_it(self, arm):
    settings = read_settings(spreads.get_config(arm))
    self.assertIs(
      settings.advantage.custom_function("estimator").function,
      altered_group_advantage,
    )
    self.assertEqual(settings.task_ids["webshop"], 1)
