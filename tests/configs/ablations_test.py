"""Every arm of every ablation changes what it says, to something there is."""

import importlib
import pkgutil

import flax.traverse_util
import numpy as np
from absl.testing import parameterized

import configs.ablations
from launch.config.settings import read_settings


def _cases():
  for _, name, _ in pkgutil.iter_modules(configs.ablations.__path__):
    module = importlib.import_module(f"configs.ablations.{name}")
    for arm in module.ARMS:
      yield f"{name}_{arm}", module, arm


def _flat(config):
  flat = flax.traverse_util.flatten_dict(config.to_dict(), sep=".")
  del flat["name"]
  return flat


class AblationsTest(parameterized.TestCase):
  @parameterized.named_parameters(*_cases())
  def test_changes_only_what_it_names(self, module, arm):
    baseline = _flat(module.get_config(next(iter(module.ARMS))))
    changed = _flat(module.get_config(arm))
    self.assertEqual(changed, baseline | module.ARMS[arm])

  @parameterized.named_parameters(*_cases())
  def test_asks_for_what_exists(self, module, arm):
    read_settings(module.get_config(arm))

  def test_runs_of_different_arms_have_different_folders(self):
    names = [module.get_config(arm).name for _, module, arm in _cases()]
    self.assertLen(set(names), len(names))

  def test_an_arm_that_is_not_there(self):
    from configs.ablations import clip_range

    with self.assertRaisesRegex(ValueError, "is not one of symmetric, higher"):
      clip_range.get_config("upside_down")


class RandomFilterTest(parameterized.TestCase):
  # Rewards of groups 0 to 3, two attempts each; group 4 has none.
  GROUP = np.arange(8) // 2

  def kept(self, reward, tokens=100):
    from configs.ablations import filters

    return filters.keep_random(
      reward_N=np.array(reward, np.float32),
      group_N=self.GROUP,
      num_tokens_N=np.full(8, tokens),
      num_groups=5,
      valid_N=np.ones(8, bool),
    )

  @parameterized.parameters(
    ((0, 0, 0, 0, 1, 1, 1, 1), 0),
    ((0, 1, 0, 0, 1, 1, 1, 1), 1),
    ((0, 1, 1, 0, 0, 1, 1, 1), 3),
    ((0, 1, 1, 0, 0, 1, 1, 0), 4),
  )
  def test_keeps_as_many_as_have_a_signal(self, reward, number):
    for tokens in range(20):
      kept = self.kept(reward, tokens)
      self.assertEqual(kept.sum(), number)
      self.assertFalse(kept[4])

  def test_rewards_do_not_decide_which(self):
    one, other = (0, 1, 1, 1, 0, 0, 1, 0), (0, 0, 1, 0, 1, 0, 1, 1)
    choices = set()
    for tokens in range(20):
      kept = self.kept(one, tokens)
      np.testing.assert_array_equal(kept, self.kept(other, tokens))
      choices.add(tuple(kept.tolist()))
    self.assertGreater(len(choices), 3)
