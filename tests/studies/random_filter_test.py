"""The random filter keeps as many groups as have a signal, by chance."""

import jax
import numpy as np
from absl.testing import parameterized

from studies.random_filter import keep_random_groups

# Groups 0 to 3 with two attempts each; group 4 has none.
GROUP = np.arange(8) // 2


def kept(reward, tokens, **settings):
  static = ("num_groups", "share", "rule")
  keep = jax.jit(keep_random_groups, static_argnames=static)
  return np.asarray(
    keep(
      reward_N=np.array(reward, np.float32),
      group_N=GROUP,
      num_tokens_N=np.full(8, tokens),
      num_groups=5,
      valid_N=np.ones(8, bool),
      **settings,
    )
  )


class KeepRandomGroupsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((0, 0, 0, 0, 1, 1, 1, 1), {}, 0),
    ((0, 1, 1, 0, 0, 1, 1, 1), {}, 3),
    ((0, 1, 0, 0.9, 0, 0.1, 1, 1), {"share": 0.9}, 2),
    ((0, 1, 0, 0, 1, 1, 1, 1), {"share": 0.5, "rule": "top_share"}, 2),
  )
  def test_keeps_as_many_groups_as_the_rule(self, reward, settings, number):
    for tokens in range(20):
      keep_M = kept(reward, tokens, **settings)
      self.assertEqual(keep_M.sum(), number)
      self.assertFalse(keep_M[4])

  def test_rewards_do_not_decide_which_groups_are_kept(self):
    choices = set()
    for tokens in range(20):
      keep_M = kept((0, 1, 1, 1, 0, 0, 1, 0), tokens)
      other_M = kept((0, 0, 1, 0, 1, 0, 1, 1), tokens)
      np.testing.assert_array_equal(keep_M, other_M)
      choices.add(tuple(keep_M.tolist()))
    self.assertGreater(len(choices), 3)
