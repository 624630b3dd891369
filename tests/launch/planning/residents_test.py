"""Arrays that stay on a chip between programs, by the model's size."""

import dataclasses

import jax
from absl.testing import absltest

from agentrl_jax.model import sharding
from agentrl_jax.train.weights.reference import ReferenceConfig
from configs import pod
from launch.config.settings import Settings, read_settings
from launch.planning import roofline
from launch.planning.residents import learner_residents, rollout_residents
from tests.launch.planning.models import pod_settings


def _settings(**changes) -> Settings:
  settings = pod_settings("qwen3-0.6b")
  return dataclasses.replace(settings, **changes)


def _with_all_pages(settings: Settings) -> Settings:
  """Settings with pages for all slots."""
  engine = dataclasses.replace(settings.engine, slots=(48, 16), cache_tokens=())
  return dataclasses.replace(settings, engine=engine)


def _one_device():
  return sharding.make_mesh({}, jax.devices()[:1])


class ResidentsTest(absltest.TestCase):
  def test_training_keeps_four_copies_and_the_reference_at_half_precision(self):
    settings = _settings()
    found = learner_residents(settings, _one_device())
    params = 4 * roofline.num_params(settings.model)
    for name, share in (
      ("params", 1),
      ("gradients", 1),
      ("optimizer", 2),
      ("reference", 0.5),
    ):
      self.assertBetween(found[name] / params / share, 1, 1.001, name)
    self.assertNotIn("frozen params", found)

  def test_a_reference_elsewhere_is_not_on_the_chip(self):
    settings = _settings(reference=ReferenceConfig(place="offloaded"))
    found = learner_residents(settings, _one_device())
    self.assertNotIn("reference", found)

  def test_a_teacher_takes_the_room_of_its_own_size(self):
    teacher = pod_settings("qwen3-1.7b").model
    found = learner_residents(_settings(teacher=teacher), _one_device())
    own = 2 * roofline.num_params(teacher)
    self.assertBetween(found["reference"] / own, 1, 1.001)

  def test_under_adapters_params_are_small_and_the_rest_is_kept_as_computed(
    self,
  ):
    config = pod.get_config("qwen3-0.6b")
    config.lora.rank = 8
    settings = read_settings(config)
    found = learner_residents(settings, _one_device())
    params = 4 * roofline.num_params(settings.model)
    self.assertLess(found["params"], 0.02 * params)
    self.assertBetween(found["frozen params"] / params, 0.5, 0.51)

  def test_rollouts_keep_weights_and_a_cache_for_every_version(self):
    settings = _with_all_pages(_settings())
    found = rollout_residents(settings, _one_device(), dtype="bfloat16")
    c, engine = settings.model, settings.engine
    weights = 2 * roofline.num_params(c)
    token = 2 * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    for policy_slot, slots in enumerate(engine.slots):
      self.assertEqual(
        found[f"cache of policy slot {policy_slot}"],
        token * slots * engine.context,
      )
    for name in (
      "weights of policy slot 0",
      "weights of policy slot 1",
      "weights on their way",
    ):
      self.assertBetween(found[name] / weights, 1, 1.001, name)

  def test_weights_in_eight_bits_reach_a_server_in_full(self):
    settings = _with_all_pages(_settings())
    engine = dataclasses.replace(settings.engine, weights="int8")
    for is_server in (False, True):
      found = rollout_residents(
        dataclasses.replace(settings, engine=engine),
        _one_device(),
        dtype="bfloat16",
        is_server=is_server,
      )
      # The embedding stays as it is, whether it is the output matrix or not.
      c = settings.model
      full = 2 * roofline.num_params(c)
      eight = full / 2 + roofline.head_weights(c)
      served = found["weights of policy slot 0"]
      self.assertBetween(served / eight, 1, 1.01)
      arriving = full if is_server else eight
      self.assertBetween(found["weights on their way"] / arriving, 1, 1.01)

  def test_sequences_that_drafts_come_from_are_counted(self):
    engine = dataclasses.replace(_settings().engine, slots=(32, 8))
    kept = [
      rollout_residents(
        _settings(engine=dataclasses.replace(engine, draft_tokens=number)),
        _one_device(),
        dtype="bfloat16",
      ).get("drafts of policy slot 0", 0)
      for number in (0, 4)
    ]
    self.assertEqual(kept[0], 0)
    # The sequences, and an index with two to four entries per token and kind.
    share = kept[1] / (4 * 32 * engine.context)
    self.assertBetween(share, 1 + 3 * 2, 1.1 + 3 * 4)
