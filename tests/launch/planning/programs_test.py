"""The planned programs are those that a run of the config compiles."""

import jax
from absl.testing import absltest

from agentrl_jax.model import sharding
from launch.config.settings import read_settings
from launch.planning.programs import MASKS, abstract_batch, learner_programs
from tests.launch import tiny


class ConstrainedCallsTest(absltest.TestCase):
  def planned(self, calls):
    config = tiny.get_config()
    config.sampling.calls = calls
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    return read_settings(config), mesh

  def test_masks_are_planned_for_where_calls_follow_a_grammar(self):
    settings, mesh = self.planned("well_formed")
    batch = abstract_batch(settings, mesh).batch
    self.assertEqual(batch.allowed.shape, batch.token.shape)
    self.assertEqual(batch.mask_MX.shape, (MASKS, 13))  # 400 tokens
    gradient, _ = learner_programs(settings, mesh)
    gradient.trace()

  def test_experts_are_planned_for_where_they_are_replayed(self):
    config = tiny.get_config()
    config.model.num_experts, config.model.experts_per_token = 4, 2
    config.engine.router_replay = True
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    for config.train.sharing in (1, 2):
      settings = read_settings(config)
      batch = abstract_batch(settings, mesh).batch
      experts = batch.experts if batch.tree is None else batch.tree.experts
      rows = settings.batch.micro_batch, settings.batch.row_length
      sizes = settings.model.num_layers, 2
      self.assertEqual(experts.shape, (*rows, *sizes))
      gradient, _ = learner_programs(settings, mesh)
      gradient.trace()

  def test_no_masks_without_a_grammar(self):
    batch = abstract_batch(*self.planned("free")).batch
    self.assertIsNone(batch.allowed)
    self.assertIsNone(batch.mask_MX)
