"""Experts by groups, and each of every token, say the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import experts
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.policy import Policy
from tests.settings import COMPUTE, compute_config

MODEL = ModelConfig(
  vocab_size=40,
  width=12,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  mlp_width=10,
  num_experts=6,
  experts_per_token=2,
)


def routed(expert_NK, seed=0):
  """Tokens, their weights, and matrices of four experts."""
  rng = np.random.default_rng(seed)
  shapes = [(len(expert_NK), 12), np.shape(expert_NK)]
  shapes += [(4, 12, 10), (4, 12, 10), (4, 10, 12)]
  x, weight, *matrices = (
    jnp.asarray(0.5 * rng.normal(size=shape), jnp.float32) for shape in shapes
  )
  return x, weight, jnp.asarray(expert_NK), *matrices


class ApplyTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("each_used", [[0, 1], [2, 3], [3, 0]]),
    ("one_for_all", [[2, 1], [2, 1], [2, 1]]),
    # Numbers of other devices' experts, below and above those of this one.
    ("of_others", [[-3, 1], [7, 4], [3, -1], [0, 2]]),
    ("none_here", [[-2, -1], [4, 5]]),
  )
  def test_groups_equal_all(self, expert_NK):
    arrays = routed(expert_NK)

    def total(apply, x, weight, gate, up, down):
      y_ND = apply(x, weight, arrays[2], gate, up, down)
      return jnp.sum(jnp.sin(y_ND)), y_ND

    others = (*arrays[:2], *arrays[3:])
    found = [
      jax.value_and_grad(total, (1, 2, 3, 4, 5), has_aux=True)(apply, *others)
      for apply in (experts.apply_grouped, experts.apply_all)
    ]
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found
    )

  def test_a_tokens_output_is_the_weighted_sum_of_its_experts(self):
    x, weight, expert_NK, gate, up, down = routed([[3, 1]])
    wanted = sum(
      w * ((jax.nn.silu(x[0] @ gate[e]) * (x[0] @ up[e])) @ down[e])
      for w, e in zip(weight[0], expert_NK[0], strict=True)
    )
    found = experts.apply_grouped(x, weight, expert_NK, gate, up, down)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)


class RouteTest(absltest.TestCase):
  def test_weights_are_shares_of_all_or_of_the_chosen(self):
    x_ND, router_DE = jnp.eye(2, 12), jnp.zeros((12, 6)).at[0, 4].set(1.0)
    weight_NK, expert_NK = experts.route(x_ND, router_DE, MODEL)
    self.assertEqual(expert_NK.tolist(), [[4, 0], [0, 1]])
    np.testing.assert_allclose(weight_NK[1], [1 / 6, 1 / 6], rtol=1e-6)
    normed = dataclasses.replace(MODEL, normed_experts=True)
    weight_NK, _ = experts.route(x_ND, router_DE, normed)
    np.testing.assert_allclose(weight_NK.sum(1), [1, 1], rtol=1e-6)

  def test_near_experts_keep_their_places_in_bfloat16(self):
    x_ND = jnp.ones((1, 12), jnp.bfloat16)
    router_DE = jnp.zeros((12, 6)).at[0].set(1 + jnp.arange(6) * 1e-4)
    _, expert_NK = experts.route(x_ND, router_DE, MODEL)
    self.assertEqual(expert_NK.tolist(), [[5, 4]])

  def test_the_learner_routes_by_the_numbers_that_rollouts_have(self):
    """Published weights are in the dtype of the computation, the router too."""
    policy = Policy(MODEL, compute_config(dtype="bfloat16"))
    params = policy.init(jax.random.key(0))
    rounded = jax.tree.map(
      lambda x: x.astype(jnp.bfloat16), params["layers"]["experts"]
    )
    published = params | {"layers": params["layers"] | {"experts": rounded}}
    rows = (jnp.arange(24)[None], jnp.arange(24)[None], jnp.ones((1, 24), int))
    learner, rollout = (policy.logits(p, *rows) for p in (params, published))
    np.testing.assert_array_equal(learner, rollout)


class AdaptersTest(absltest.TestCase):
  def test_of_attention_alone(self):
    adaptation = LoraConfig(rank=2, alpha=4.0, targets=("q", "down", "gate"))
    with self.assertRaisesRegex(ConfigError, "no down, gate.*targets="):
      Policy(MODEL, COMPUTE, adaptation=adaptation)
    policy = Policy(
      MODEL, COMPUTE, adaptation=dataclasses.replace(adaptation, targets=("q",))
    )
    adapters, frozen = policy.split(
      policy.init(jax.random.key(0)), jax.random.key(1)
    )
    self.assertEqual(list(adapters["layers"]), ["attention"])
    self.assertIn("experts", frozen["layers"])


if __name__ == "__main__":
  absltest.main()
