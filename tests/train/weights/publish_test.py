"""Published layers are those of the policy, whatever form they had."""

import dataclasses

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.publish import Publisher
from tests.settings import COMPUTE
from tests.train import small

MODEL = ModelConfig(
  vocab_size=20,
  width=8,
  num_layers=3,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  mlp_width=12,
  value_head=True,
)
# A dense layer before two with experts, whose router stays float32.
STACKS = dataclasses.replace(
  MODEL,
  num_experts=4,
  experts_per_token=2,
  sigmoid_router=True,
  dense_layers=1,
  dense_mlp_width=6,
)


class Sink:
  def publish(self, params, version, *, policy_slot=0):
    self.params = params


class PublishTest(parameterized.TestCase):
  @parameterized.product(dtype=("float32", "bfloat16"), model=(MODEL, STACKS))
  def test_layers_are_copied_in_order_and_turned_for_one_cpu(
    self, dtype, model
  ):
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    policy = Policy(model, COMPUTE, mesh)
    params = small.params_of(model)
    sink = Sink()
    publisher = Publisher(policy, sink, dtype=dtype)
    publisher.publish(params, 0)
    wanted = jax.jit(
      lambda params: sharding.copied(policy.to_decode(params), dtype)
    )(params)
    self.assertLen(wanted["layers"], 3)
    self.assertEqual(
      jax.tree.structure(sink.params), jax.tree.structure(wanted)
    )
    jax.tree.map(np.testing.assert_array_equal, sink.params, wanted)
