"""Every arm of every ablation changes what it says, to something there is."""

import importlib
import pkgutil

from absl.testing import parameterized

import configs.ablations
from configs.base import flat_keys
from launch.config.settings import read_settings


def _cases():
  folder = configs.ablations
  for found in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
    if not found.ispkg:
      module = importlib.import_module(found.name)
      for arm in module.ARMS:
        yield f"{found.name.rpartition('.')[2]}_{arm}", module, arm


def _flat(config):
  flat = dict(flat_keys(config))
  del flat["name"]
  return flat


class AblationsTest(parameterized.TestCase):
  @parameterized.named_parameters(*_cases())
  def test_changes_only_what_it_names(self, module, arm):
    baseline = _flat(module.get_config(next(iter(module.ARMS))))
    changed = _flat(module.get_config(arm))
    changes = dict(flat_keys(module.ARMS[arm]))
    self.assertEqual(changed, baseline | changes)

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
