"""`configs/base.py` alone has the defaults of config keys."""

import dataclasses
import typing

import ml_collections
from absl.testing import parameterized

from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.train.config.loss import LossConfig
from configs import base
from configs.base import defaults
from launch.config.settings import Settings

CONFIG = base.get_config()
# No class is made of these. The model's has defaults: a published model's
# config.json or preset does not state what the model lacks.
WITHOUT = ("mesh", "tasks", "environments", "tokenizer", "pretrained", "report")
EXEMPT = ("model",)


def classes_of_sections():
  """Maps the name of each section to the class that `launch` makes of it."""
  made = typing.get_type_hints(Settings) | {"containers": ContainerSpec}
  made |= {"train": made["batch"], "warm_start": made["warm_start_optimizer"]}
  return {
    name: made.get(name)
    for name, section in CONFIG.items()
    if isinstance(section, ml_collections.ConfigDict)
  }


def repeated(settings, keys):
  """Returns the keys whose field has a default or is not keyword-only."""
  missing = dataclasses.MISSING
  return [
    field.name
    for field in dataclasses.fields(settings)
    if field.name in keys
    and not (
      field.kw_only and field.default is field.default_factory is missing
    )
  ]


class DefaultsTest(parameterized.TestCase):
  def test_every_section_has_a_class(self):
    found = classes_of_sections()
    without = [n for n, c in found.items() if not dataclasses.is_dataclass(c)]
    self.assertCountEqual(without, WITHOUT)

  def test_no_class_repeats_a_default(self):
    for name, settings in classes_of_sections().items():
      if name not in (*WITHOUT, *EXEMPT):
        section = CONFIG[name]
        keys = section.optimizer if name == "warm_start" else section
        with self.subTest(name):
          self.assertEmpty(repeated(settings, keys))

  def test_the_inspector_sees(self):
    @dataclasses.dataclass
    class Told:
      a: int
      b: int = dataclasses.field(kw_only=True, default=0)
      c: dict = dataclasses.field(kw_only=True, default_factory=dict)
      d: int = dataclasses.field(kw_only=True)
      e: int = dataclasses.field(kw_only=True, default=0)

    self.assertEqual(repeated(Told, ("a", "b", "c", "d")), ["a", "b", "c"])

  def test_defaults_are_changed_by_name(self):
    loss = defaults(LossConfig, "loss", clip_high=0.28)
    self.assertEqual((loss.clip_low, loss.clip_high), (0.2, 0.28))
    with self.assertRaisesRegex(TypeError, "clip_hihg"):
      defaults(LossConfig, "loss", clip_hihg=0.28)
