"""Every arm of every ablation changes what it says, to something there is."""

import importlib
import pathlib
import pkgutil
import tempfile

from absl.testing import parameterized

import configs.ablations
import studies.configs
from configs.base import flat_keys
from launch.config.settings import read_settings
from tests.launch.export_test import write_model


def _cases():
  for folder in (configs.ablations, studies.configs):
    for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
      module = importlib.import_module(found.name)
      for arm in getattr(module, "ARMS", ()):
        yield f"{found.name.rpartition('.')[2]}_{arm}", module, arm


def _flat(config):
  flat = dict(flat_keys(config))
  del flat["name"]
  return flat


class AblationsTest(parameterized.TestCase):
  @parameterized.named_parameters(*_cases())
  def test_changes_only_what_it_names(self, module, arm):
    first = next(iter(module.ARMS))
    changed = _flat(module.get_config(arm))
    baseline = _flat(module.get_config(first))
    changes = dict(flat_keys(module.ARMS[arm]))
    left = dict(flat_keys(module.ARMS[first])).keys() - changes.keys()
    for key in left:
      del changed[key], baseline[key]
    self.assertEqual(changed, baseline | changes)

  @parameterized.named_parameters(*_cases())
  def test_asks_for_what_exists(self, module, arm):
    config = module.get_config(arm)
    if config.pretrained.path:  # a published model, whose place one is put in
      folder = self.enter_context(tempfile.TemporaryDirectory())
      config.pretrained.path = str(pathlib.Path(folder) / "model")
      write_model(pathlib.Path(config.pretrained.path))
    read_settings(config)

  def test_runs_of_different_arms_have_different_folders(self):
    names = [module.get_config(arm).name for _, module, arm in _cases()]
    self.assertLen(set(names), len(names))

  def test_an_arm_that_is_not_there(self):
    from configs.ablations import clip_range

    with self.assertRaisesRegex(ValueError, "is not one of symmetric, higher"):
      clip_range.get_config("upside_down")
