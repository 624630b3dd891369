"""Decoding says the same in every form of the params."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.model import layer_forms, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy

# No two axes of one size, so that none can be taken for another.
MODEL = ModelConfig(
  vocab_size=40,
  width=24,
  mlp_width=56,
  num_layers=2,
  num_heads=6,
  num_kv_heads=2,
  head_dim=8,
  qkv_bias=True,
)


def varied(params):
  """The same with biases that are not 0."""
  keys = iter(jax.random.split(jax.random.key(7), 100))
  return jax.tree.map(
    lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), params
  )


class LayerFormsTest(parameterized.TestCase):
  @parameterized.parameters((1, 1), (5, 1), (3, 7), (9, 11))
  def test_turned_kernels_say_the_same(self, num_slots, num_tokens):
    """Few rows and, with 99 of them, many."""
    policy = Policy(MODEL)
    params = varied(policy.init(jax.random.key(0)))
    apart = params | {"layers": layer_forms.unstacked(params["layers"])}
    turned = policy.to_decode(params)
    self.assertTrue(layer_forms.is_turned(turned["layers"][0]))
    self.assertFalse(layer_forms.is_turned(apart["layers"][0]))
    rng = np.random.default_rng(num_slots)
    token_BC = rng.integers(0, MODEL.vocab_size, (num_slots, num_tokens))
    start_B = jnp.zeros(num_slots, jnp.int32)
    length_B = jnp.full(num_slots, num_tokens)
    cache = policy.empty_cache(num_slots, 16)
    extend = jax.jit(policy.extend)
    plain, found = (
      extend(form, cache, token_BC, start_B, length_B)
      for form in (apart, turned)
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), plain, found
    )

  def test_params_over_devices_are_not_turned(self):
    """Their shardings are by the axes that they are trained with."""
    one = jax.devices()[:1]
    for mesh, is_turned in (
      (None, True),
      (sharding.make_mesh({}, one), True),
      (jax.sharding.AbstractMesh((2,), ("tensor",)), False),
    ):
      policy = Policy(MODEL)
      policy.mesh = mesh
      form = jax.eval_shape(policy.to_decode, policy.abstract_params())
      self.assertEqual(layer_forms.is_turned(form["layers"][0]), is_turned)


if __name__ == "__main__":
  absltest.main()
