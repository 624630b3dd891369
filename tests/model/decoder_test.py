"""The decoder's products and the forms of its params."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.model import decoder, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.layers.projection import project
from agentrl_jax.model.policy import Policy
from tests.settings import COMPUTE

SHAPES = (  # of x and of the kernel, and the axes that are contracted
  ((3, 4), (4, 5), 1),
  ((2, 3, 4), (4, 2, 5), 1),
  ((2, 3, 2, 4), (2, 4, 5), 2),
  ((2, 3, 2, 2, 4), (2, 2, 4, 5), 3),
)


def _inputs(x_shape, kernel_shape):
  rng = np.random.default_rng(0)
  return tuple(
    rng.normal(size=shape).astype(np.float32)
    for shape in (x_shape, kernel_shape)
  )


class ProjectTest(parameterized.TestCase):
  @parameterized.parameters(*SHAPES)
  def test_equals_tensordot(self, x_shape, kernel_shape, num_axes):
    inputs = _inputs(x_shape, kernel_shape)

    def cubes(product):
      return jax.jit(
        jax.value_and_grad(
          lambda x, kernel: (product(x, kernel, num_axes) ** 3).sum(), (0, 1)
        )
      )

    found, wanted = cubes(project)(*inputs), cubes(jnp.tensordot)(*inputs)
    chex.assert_trees_all_close(found, wanted, rtol=1e-4)

  def test_dtype_stays(self):
    def total(x, kernel):
      return project(x, kernel, 1).astype(jnp.float32).sum()

    inputs = [x.astype(jnp.bfloat16) for x in _inputs(*SHAPES[1][:2])]
    for leaf in jax.eval_shape(jax.grad(total, (0, 1)), *inputs):
      self.assertEqual(leaf.dtype, jnp.bfloat16)


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
  @pytest.mark.slow
  def test_turned_kernels_say_the_same(self, num_slots, num_tokens):
    """Few rows and, with 99 of them, many."""
    policy = Policy(MODEL, COMPUTE)
    params = varied(policy.init(jax.random.key(0)))
    apart = params | {"layers": decoder.unstacked(params["layers"])}
    turned = policy.to_decode(params)
    self.assertTrue(decoder.is_turned(turned["layers"][0]))
    self.assertFalse(decoder.is_turned(apart["layers"][0]))
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
    chex.assert_trees_all_close(plain, found, rtol=1e-7, atol=2e-5)

  def test_params_over_devices_are_not_turned(self):
    """Their shardings are by the axes that they are trained with."""
    one = jax.devices()[:1]
    for mesh, is_turned in (
      (None, True),
      (sharding.make_mesh({}, one), True),
      (jax.sharding.AbstractMesh((2,), ("tensor",)), False),
    ):
      policy = Policy(MODEL, COMPUTE)
      policy.mesh = mesh
      form = jax.eval_shape(policy.to_decode, policy.abstract_params())
      self.assertEqual(decoder.is_turned(form["layers"][0]), is_turned)
