"""Weights in eight bits compute what their rounded numbers compute."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model import experts, lora, quantization
from agentrl_jax.model.policy import Policy
from agentrl_jax.model.quantization import Quantized
from agentrl_jax.rollout.api import WEIGHTS
from agentrl_jax.train.weights.publish import Publisher
from tests.model import drawn
from tests.model.policy_test import GEMMA_4_E2B, GEMMA_4_MOE, QWEN3_5
from tests.rollout import small
from tests.settings import COMPUTE, compute_config, lora_config

BASE = small.policy().config
ROUTED = dataclasses.replace(
  BASE, num_layers=1, num_experts=4, experts_per_token=2, qk_norm=True
)
MODELS = {
  "untied": dataclasses.replace(
    BASE, tied_embedding=False, qkv_bias=True, value_head=True
  ),
  "dense first": dataclasses.replace(
    ROUTED,
    num_layers=2,
    sigmoid_router=True,
    shared_experts=1,
    dense_layers=1,
    dense_mlp_width=40,
  ),
  "states": dataclasses.replace(BASE, num_layers=2, **QWEN3_5),
  # Norms of few channels near 0 would magnify a last digit.
  "two kinds": dataclasses.replace(BASE, norm_epsilon=1e-2, **GEMMA_4_MOE),
  "sharing": dataclasses.replace(BASE, **GEMMA_4_E2B),
  "biases": dataclasses.replace(ROUTED, normed_experts=True, swiglu_limit=7.0),
}


class Sink:
  def publish(self, params, version, *, policy_slot=0):
    self.params = params


def published(policy, params, **settings):
  """Returns the params as an engine gets them."""
  sink = Sink()
  Publisher(policy, sink, **settings).publish(params, 0)
  return sink.params


quantized = jax.jit(quantization.quantize, static_argnums=1)


@functools.partial(jax.jit, static_argnums=1)
def rounded(params, weights):
  """Returns plain params of the numbers that the quantised ones stand for."""
  return jax.tree.map(
    lambda x: quantization.dequantized(x, jnp.float32),
    quantization.quantize(params, weights),
    is_leaf=lambda x: isinstance(x, Quantized),
  )


@functools.partial(jax.jit, static_argnums=0)
def extended(policy, params):
  """Decodes by separate layers, into which it takes stacked ones apart."""
  token_BC = jnp.arange(10).reshape(2, 5)
  zeros, fives = jnp.zeros(2, int), jnp.full(2, 5)
  cache = policy.empty_cache(2, 16)
  hidden, _ = policy.extend(params, cache, token_BC, zeros, fives)
  return policy.unembed(params, hidden)


def quantized_names(params):
  leaves = jax.tree_util.tree_leaves_with_path(
    params, is_leaf=lambda x: isinstance(x, Quantized)
  )
  return {
    "/".join(str(key.key) for key in path if hasattr(key, "key"))
    for path, leaf in leaves
    if isinstance(leaf, Quantized)
  }


class QuantizationTest(parameterized.TestCase):
  @parameterized.parameters(
    ("untied", "int8"),
    ("dense first", "int8"),
    ("biases", "int8"),
    ("states", "int8"),
    ("two kinds", "int8"),
    ("sharing", "int8"),
    ("sharing", "fp8"),
    ("biases", "fp8"),
  )
  def test_decodes_as_the_numbers_that_are_stored(self, name, weights):
    policy = Policy(MODELS[name], COMPUTE)
    params = drawn.fill(policy.abstract_params(), seed=1)
    wanted = extended(policy, rounded(params, weights))
    found = extended(policy, published(policy, params, weights=weights))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    drift = np.abs(np.asarray(found) - extended(policy, params)).max()
    self.assertBetween(drift, 1e-3, 1)

  def test_only_products_of_many_weights_are_quantised(self):
    attention = {f"layers/attention/{name}/kernel" for name in "qkvo"}
    mlp = {f"layers/{name}/kernel" for name in ("gate", "up", "down")}
    of_experts = {f"layers/experts/{name}" for name in ("gate", "up", "down")}
    for config, wanted in (
      (BASE, attention | mlp),
      (MODELS["untied"], attention | mlp | {"head/kernel"}),
      (ROUTED, attention | of_experts),
    ):
      params = Policy(config, COMPUTE).abstract_params()
      eight = jax.eval_shape(lambda p: quantization.quantize(p, "int8"), params)
      self.assertEqual(quantized_names(eight), wanted)

  @parameterized.parameters("int8", "fp8")
  def test_channels_of_every_size_stay_near(self, weights):
    """A channel of zeros, of denormals, of one outlier, and of huge numbers."""
    kernel = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    kernel *= [0, 1e-42, 1, 1e30, 1]
    kernel[0, 4] = 1000
    params = {"layers": ({"up": {"kernel": kernel}},)}
    found = rounded(params, weights)["layers"][0]["up"]["kernel"]
    # Half a step of int8; half of the last of three bits of e4m3.
    step = np.abs(kernel).max(0) / 254
    share = 2.0**-4 * np.abs(kernel)
    most = step if weights == "int8" else np.maximum(share, step / 400)
    found = np.asarray(found)
    self.assertTrue((np.abs(found - kernel) <= most * 1.001 + 1e-37).all())

  def test_numbers_that_are_not_finite_stay_visible(self):
    for number in (np.nan, np.inf):
      kernel = np.ones((64, 5), np.float32)
      kernel[1, 0] = number
      params = {"layers": ({"up": {"kernel": kernel}},)}
      found = rounded(params, "int8")["layers"][0]["up"]["kernel"]
      is_finite = np.isfinite(np.asarray(found))
      self.assertFalse(is_finite[:, 0].any())
      self.assertTrue(is_finite[:, 1:].all())

  def test_grouped_experts_compute_what_all_do(self):
    rng = np.random.default_rng(0)
    shapes = {"gate": (4, 32, 48), "up": (4, 32, 48), "down": (4, 48, 32)}
    params = {
      name: rng.normal(0, 0.1, shape).astype(np.float32)
      for name, shape in shapes.items()
    }
    eight = quantized({"layers": ({"experts": params},)}, "int8")
    matrices = [eight["layers"][0]["experts"][name] for name in shapes]
    x_ND = rng.normal(size=(7, 32)).astype(np.float32)
    # Two experts that are another device's.
    expert_NK = rng.integers(-1, 5, (7, 2))
    arguments = x_ND, np.full((7, 2), 0.5, np.float32), expert_NK, *matrices
    np.testing.assert_allclose(
      jax.jit(experts.apply_grouped)(*arguments),
      jax.jit(experts.apply_all)(*arguments),
      atol=1e-6,
    )

  def test_adapters_are_merged_first(self):
    policy = Policy(BASE, COMPUTE, adaptation=lora_config(rank=2))
    params = policy.whole(*drawn.fill(policy.abstract_split()))
    self.assertTrue(lora.is_adapted(params["layers"]))
    plain = jax.jit(policy.plain)(params)
    np.testing.assert_allclose(
      extended(policy, published(policy, params, weights="int8")),
      extended(policy, rounded(plain, "int8")),
      atol=1e-4,
    )

  def test_takes_half_of_the_memory_of_bfloat16(self):
    c = dataclasses.replace(BASE, width=256, mlp_width=1024)
    policy = Policy(c, compute_config(dtype="bfloat16"))
    full = policy.abstract_params()
    eight = jax.eval_shape(lambda p: quantization.quantize(p, "int8"), full)

    def size(params):
      layers = jax.tree.leaves(params["layers"])
      return sum(x.size * x.dtype.itemsize for x in layers)

    self.assertBetween(2 * size(eight) / size(full), 0.5, 0.53)

  def test_donated_kernels_are_freed_and_the_same(self):
    params = drawn.fill(Policy(BASE, COMPUTE).abstract_params())
    wanted = quantized(params, "int8")
    params = jax.tree.map(jnp.asarray, params)
    found = quantization.quantize(params, "int8", donates=True)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    freed = [x.is_deleted() for x in jax.tree.leaves(params)]
    self.assertEqual(sum(freed), 7)

  def test_every_value_of_the_key_has_a_type(self):
    self.assertEqual({"full", *quantization.DTYPES}, set(WEIGHTS))
