"""Tests of `agentrl_jax.keys`: what each key of the config may be."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
from absl.testing import parameterized

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.controller.groups.group import GroupLimits
from agentrl_jax.controller.groups.group_queue import QueueLimits
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import FUNCTION, Section, key, keys_of, seconds
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.sharding import MeshConfig
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import AgentsConfig
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.learner import OptimizerConfig
from agentrl_jax.train.weights.checkpoint import CheckpointConfig
from configs.base import SECTIONS

pytestmark = pytest.mark.smoke

WRONG_NUMBERS = (math.nan, math.inf, -math.inf, -2e6, 1e30, True, "1", None)
WRONG = {
  int: (*WRONG_NUMBERS, -2, 1.5, 2**63, 10**3000),
  float: WRONG_NUMBERS,
  bool: (0, 1, "True", None),
  str: ("no such name", 1, None),
  Mapping: ((), "a", None),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes(Section, section="shapes"):
  sides: int = key(3, "of each shape", at_least=3)
  area: float = key(1.0, "", above=0, at_most=10)
  share: float = key(0.0, "", below=1)
  kind: str = key("flat", "", one_of=("flat", "solid"))
  map: str = key("", "", one_of=("", FUNCTION))
  options: Mapping[str, int] = key({}, "")
  sizes: tuple[int, ...] = key((), "", at_least=1)
  wait_s: float = seconds(5.0, "")
  is_open: bool = key(True, "")
  color: str = "red"


class KeysTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"sides": 2}, "shapes.sides=2 must be a whole number, at least 3"),
    ({"sides": 3.0}, "must be a whole number"),
    ({"sides": True}, "must be a whole number"),
    ({"area": 0}, "area=0 must be a number, above 0 and at most 10"),
    ({"area": math.nan}, "area=nan must be"),
    ({"share": 1.0}, "share=1.0 must be a number, at least 0 and below 1"),
    ({"kind": "sold"}, r"one of flat, solid \(did you mean solid\?\). Set --c"),
    ({"map": "f"}, "one of '', module:function"),
    ({"options": ()}, "a mapping"),
    ({"sizes": 4}, "a tuple, each a whole number, at least 1"),
    ({"sizes": (4, 0)}, "a tuple, each a whole number, at least 1"),
    ({"wait_s": 0.0}, "above 0 and at most 1000000000"),
    ({"is_open": 1}, "True or False"),
    ({"sides": 1, "area": 99}, "sides=1 must .*; shapes.area=99 must"),
  )
  def test_a_wrong_value_is_refused_with_what_is_allowed(self, given, message):
    with self.assertRaisesRegex(ConfigError, message):
      Shapes(**given)

  def test_allowed_values(self):
    shapes = Shapes(area=10, map="lab:f", sizes=[1, 2], options={"a": 1})
    self.assertEqual((shapes.sides, shapes.color), (3, "red"))
    self.assertNotIn("color", keys_of(Shapes))

  @parameterized.named_parameters(
    (f"{section.SECTION}.{name}", section, name, about)
    for section in SECTIONS
    for name, about in keys_of(section).items()
  )
  def test_every_key_refuses_what_is_none_of_its_values(
    self, section, name, about
  ):
    self.assertTrue(about.comment)
    is_free = about.type is str and not about.one_of
    for wrong in WRONG[about.type]:
      if is_free and isinstance(wrong, str):
        continue
      if isinstance(about.default, tuple):
        wrong = (wrong,)
      with self.assertRaisesRegex(ConfigError, rf"{name}=.* must be"):
        section(**{name: wrong})

  @parameterized.parameters(
    (OptimizerConfig, "learning_rate", 0.0),
    (OptimizerConfig, "final_lr_ratio", 1.1),
    (OptimizerConfig, "b1", 1.0),
    (OptimizerConfig, "b2", 1.0),
    (OptimizerConfig, "clip_norm", 0.0),
    (LossConfig, "clip_low", 0.0),
    (LossConfig, "clip_high", 0.0),
    (AdvantageConfig, "gae_lambda", 1.1),
    (AdvantageConfig, "discount", 1.1),
    (AdvantageConfig, "task_decay", 1.0),
    (LoraConfig, "targets", ("q", "query")),
    (LoraConfig, "alpha", 0.0),
    (EngineConfig, "slots", (4, 0)),
    (EngineConfig, "draft_cost", 1.1),
    (AgentsConfig, "port", 1 << 16),
    (CheckpointConfig, "keep", 1),
    (EpisodeWaits, "reply_timeout_s", 0.0),
    (GroupLimits, "size", 0),
    (QueueLimits, "max_age", -2),
    (ContainerSpec, "cpus", 0.0),
    (MeshConfig, "data", 0),
    (CrossPolicy, "weights", (1.0, -1.0)),
  )
  def test_the_bounds_of_keys(self, section, name, wrong):
    with self.assertRaisesRegex(ConfigError, rf"{name}=.* must be"):
      section(**{name: wrong})
