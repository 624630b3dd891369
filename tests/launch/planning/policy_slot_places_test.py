"""Policy slots with chips of their own are counted on these, and on no
others.
"""

import dataclasses
import unittest

import pytest
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings
from launch.planning import chips
from launch.planning.chips import parse_slice
from launch.planning.study import Deployment, Planner
from tests.launch.planning.models import pod_settings


def _settings(**engine) -> Settings:
  """Settings with a row of the cache for each slot."""
  settings = pod_settings("qwen3-0.6b")
  engine = dict(page_size=0, cache_tokens=()) | engine
  return dataclasses.replace(
    settings, engine=dataclasses.replace(settings.engine, **engine)
  )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class SlicesTest(absltest.TestCase):
  """Nothing is compiled: what lies on a chip is counted from shapes."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    chips = parse_slice("v5e:2x4")
    cls.planner = Planner(Deployment(learner=chips, rollout=chips))
    cls.alone = Planner(Deployment(learner=chips))

  def _kept(self, settings, planner=None):
    return (planner or self.planner).residents(settings, "rollout")

  @pytest.mark.slow
  def test_the_policy_slot_with_the_fewest_chips_is_the_tightest(self):
    settings = _settings(slices=(4, 2), slots=(8, 8))
    kept = self._kept(settings)
    self.assertEqual(
      set(kept),
      {
        "weights on their way",
        "weights of policy slot 1",
        "cache of policy slot 1",
      },
    )
    whole = self._kept(
      _settings(slots=(8, 8))
    )  # eight chips share all policy slots
    for name in kept:
      self.assertAlmostEqual(kept[name] / whole[name], 4, delta=0.01)
    for program in self.planner.programs(settings, ("rollout",)):
      self.assertEqual(program.mesh.size, 2)
      self.assertEqual(
        program.holds[:2],
        ("weights of policy slot 1", "cache of policy slot 1"),
      )

  def test_the_policy_slot_with_many_slots_is_the_tightest(self):
    settings = _settings(slices=(4, 4), slots=(32, 8))
    self.assertIn("cache of policy slot 0", self._kept(settings))
    programs = self.planner.programs(settings, ("rollout",))
    self.assertEqual([p.mesh.size for p in programs], [4, 4])
    decode = programs[1]
    self.assertEqual(decode.tokens, 32 * settings.engine.steps_per_sync)

  def test_sequences_that_drafts_come_from_are_counted(self):
    settings = _settings(slots=(32, 8), draft_tokens=4)
    context = settings.engine.context
    self.assertNotIn("drafts of policy slot 0", self._kept(_settings()))
    kept = self._kept(settings)["drafts of policy slot 0"]
    # The sequences, and an index with two to four entries per token and kind.
    self.assertBetween(kept / (4 * 32 * context), 1 + 3 * 2, 1.1 + 3 * 4)
    decode = self.planner.programs(settings, ("rollout",))[1]
    self.assertIn("drafts of policy slot 0", decode.holds)

  def test_in_the_learner_s_process_they_lie_beside_what_is_trained(self):
    settings = _settings(slices=(4, 2), slots=(8, 8))
    settings = dataclasses.replace(settings, mesh=settings.mesh | {"fsdp": 8})
    kept = self._kept(settings, self.alone)
    self.assertContainsSubset(("optimizer", "weights of policy slot 1"), kept)
    self.assertNotIn("weights of policy slot 0", kept)

  def test_engine_that_servers_refuse_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "asks for 9 devices.* has 8"):
      self._kept(_settings(slices=(8, 1), slots=(8, 8)))
    settings = _settings(slices=(4, 2), slots=(8, 8))
    settings = dataclasses.replace(settings, mesh=settings.mesh | {"fsdp": 16})
    spread = Planner(Deployment(learner=parse_slice("v5e:4x4"), rollout=None))
    with self.assertRaisesRegex(ConfigError, "asks for 6 devices.* has 4"):
      self._kept(settings, spread)
    with self.assertRaisesRegex(ConfigError, "split over the 3 devices"):
      self._kept(_settings(slices=(4, 3), slots=(8, 8)))
