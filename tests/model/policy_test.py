"""Properties of the decoder, whatever its weights."""

import dataclasses
from types import MappingProxyType

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.cached import Chunk
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy, num_params
from tests.settings import COMPUTE, compute_config

CONFIG = ModelConfig(
  vocab_size=50,
  width=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=24,
  qk_norm=True,
)
STRETCHED = {
  "rope_type": "llama3",
  "rope_factor": 8.0,
  "rope_original_context": 8,
}
GLM_4_5 = {
  "num_experts": 8,
  "experts_per_token": 3,
  "sigmoid_router": True,
  "normed_experts": True,
  "expert_groups": 4,
  "groups_per_token": 2,
  "expert_scale": 2.5,
  "shared_experts": 1,
  "dense_layers": 1,
  "dense_mlp_width": 20,
}
QWEN3_5 = {
  "delta_period": 2,
  "delta_heads": 4,
  "delta_key_heads": 2,
  "delta_key_dim": 6,
  "delta_value_dim": 5,
  "delta_taps": 3,
  "attention_gate": True,
  "partial_rotary_factor": 0.5,
  "zero_centered_norm": True,
}
QWEN3_NEXT = QWEN3_5 | {
  "delta_by_head": True,
  "num_experts": 5,
  "experts_per_token": 2,
  "normed_experts": True,
  "shared_experts": 1,
  "shared_gate": True,
}
# Layers of two kinds, each with heads, keys and a rotation of its own.
GEMMA_4 = {
  "num_layers": 4,
  "window": 5,
  "window_period": 2,
  "local_rope_theta": 100.0,
  "rope_type": "proportional",
  "partial_rotary_factor": 0.5,
  "global_head_dim": 12,
  "global_kv_heads": 1,
  "keys_as_values": True,
  "value_norm": True,
  "query_pre_attn_scalar": 1,
  "sandwich_norm": True,
  "layer_scale": True,
  "logit_cap": 3.0,
}
# The last layers read keys and values of the first, and all read the token.
# Of both there are a period and a layer more. Epsilon as for QWEN3_NEXT.
GEMMA_4_E2B = GEMMA_4 | {
  "num_layers": 6,
  "shared_kv_layers": 3,
  "norm_epsilon": 1e-2,
  "double_wide_mlp": True,
  "layer_input_dim": 10,
  "query_pre_attn_scalar": 0,
  "keys_as_values": False,
  "global_kv_heads": 0,
}
LATENTS = {
  "qk_norm": False,
  "num_kv_heads": 4,
  "latent_dim": 10,
  "query_rank": 12,
  "rotary_key_dim": 6,
  "value_dim": 5,
}
GEMMA_4_MOE = GEMMA_4 | {
  "num_experts": 4,
  "experts_per_token": 2,
  "normed_experts": True,
  "shared_experts": 1,
  "normed_branches": True,
}
VARIANTS = (
  ("qwen3", {}),
  ("qwen2.5", {"qk_norm": False, "qkv_bias": True}),
  ("untied", {"tied_embedding": False}),
  ("linear", {"rope_type": "linear", "rope_factor": 2.0}),
  ("llama3", STRETCHED),
  ("yarn", STRETCHED | {"rope_type": "yarn", "rope_attention_factor": 1.2}),
  (
    "glm4",
    {"sandwich_norm": True, "partial_rotary_factor": 0.5, "qkv_bias": True},
  ),
  ("olmo2", {"joint_qk_norm": True, "pre_norm": False, "sandwich_norm": True}),
  ("scaled", {"embedding_scale": 3.0}),
  (
    "gemma3",
    {
      "window": 5,
      "window_period": 2,
      "local_rope_theta": 100.0,
      "query_pre_attn_scalar": 12,
      "zero_centered_norm": True,
      "sandwich_norm": True,
      "activation": "gelu_tanh",
    },
  ),
  ("sinks", {"window": 3, "sinks": True}),
  (
    "gpt_oss",
    {
      "window": 5,
      "window_period": 2,
      "sinks": True,
      "qkv_bias": True,
      "o_bias": True,
      "num_experts": 5,
      "experts_per_token": 2,
      "normed_experts": True,
      "swiglu_limit": 0.5,
    },
  ),
  ("experts", {"num_experts": 5, "experts_per_token": 2}),
  ("glm4.5", GLM_4_5),
  ("qwen3.5", QWEN3_5),
  (
    "qwen3_next",
    # What a short state says at first is near 0: its norm must not enlarge it,
    # or one rounding moves the logits by more than the limit.
    QWEN3_NEXT | {"num_layers": 4, "delta_period": 3, "norm_epsilon": 1e-2},
  ),
  ("gemma4", GEMMA_4),
  (
    "deepseek",
    LATENTS
    | GLM_4_5
    | STRETCHED
    | {"rope_type": "yarn", "rope_mscale": 0.8, "rope_attention_factor": 1.1},
  ),
  ("gemma4_moe", GEMMA_4_MOE),
  ("gemma4_e2b", GEMMA_4_E2B),
)


def make(compute=COMPUTE, **changes):
  policy = Policy(dataclasses.replace(CONFIG, **changes), compute)
  params = policy.init(jax.random.key(0))
  # Biases and scales that are not at their neutral start.
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  leaves = [
    x + 0.1 * jax.random.normal(k, x.shape)
    for x, k in zip(leaves, keys, strict=True)
  ]
  return policy, jax.tree.unflatten(tree, leaves)


def rows(lengths, row_length=24, seed=0):
  """One row that holds sequences of these lengths, and padding."""
  rng = np.random.default_rng(seed)
  token = np.zeros((1, row_length), np.int32)
  position, segment = np.zeros_like(token), np.zeros_like(token)
  start = 0
  for n, length in enumerate(lengths, 1):
    here = slice(start, start + length)
    token[0, here] = rng.integers(1, CONFIG.vocab_size, length)
    position[0, here] = np.arange(length)
    segment[0, here] = n
    start += length
  return token, position, segment


class PolicyTest(parameterized.TestCase):
  @parameterized.named_parameters(*VARIANTS)
  @pytest.mark.slow
  def test_cached_equals_teacher_forced(self, changes):
    policy, params = make(**changes)
    token, position, segment = rows([20], row_length=20)
    wanted = jax.jit(policy.logits)(params, token, position, segment)[0]
    cache = policy.empty_cache(3, 32)
    # Slot 1 is fed 7 tokens (of a chunk of 9), then one at a time.
    chunk = np.zeros((3, 9), np.int32)
    chunk[1, :7] = token[0, :7]
    extend = jax.jit(policy.extend)
    hidden, cache = extend(
      params, cache, chunk, np.array([0, 0, 0]), np.array([0, 7, 0])
    )
    found = [policy.unembed(params, hidden[1, :7])]
    for t in range(7, 20):
      one = np.zeros((3, 1), np.int32)
      one[1] = token[0, t]
      hidden, cache = extend(
        params, cache, one, np.array([0, t, 0]), np.array([0, 1, 0])
      )
      found.append(policy.unembed(params, hidden[1]))
    np.testing.assert_allclose(jnp.concatenate(found), wanted, atol=2e-5)

  @pytest.mark.slow
  def test_a_state_is_its_own(self):
    """Rows name theirs; at position 0 it is empty, at length 0 it stays."""
    policy, params = make(**QWEN3_5)
    empty = policy.empty_cache(3, 16, num_states=5)
    filled = jax.tree.map(lambda x: x + 1, empty)
    extend = jax.jit(
      lambda cache, start, length, state: policy.extend_together(
        params,
        cache,
        [Chunk(np.ones((3, 2), int), start, length, np.full((3, 1), 9), state)],
      )[1][0]
    )
    start, length = np.zeros(3, int), np.array([2, 0, 2])
    state = np.array([4, 1, 9])
    found = extend(filled, start, length, state)
    wanted = extend(empty, start, length, state)
    for old, new, fresh in zip(filled[0], found, wanted, strict=True):
      np.testing.assert_array_equal(new[4], fresh[4])
      np.testing.assert_array_equal(new[:4], old[:4])
      self.assertGreater(np.abs(fresh[4]).max(), 0)

  @pytest.mark.slow
  def test_a_slot_of_length_0_stays_as_it_was(self):
    policy, params = make()
    cache = jax.tree.map(
      lambda x: x + jax.random.normal(jax.random.key(3), x.shape),
      policy.empty_cache(2, 8),
    )
    token = np.ones((2, 3), np.int32)
    _, after = jax.jit(policy.extend)(
      params, cache, token, np.array([2, 2]), np.array([0, 2])
    )
    for old, new in zip(
      jax.tree.leaves(cache), jax.tree.leaves(after), strict=True
    ):
      np.testing.assert_array_equal(old[0], new[0])
      changed = np.any(np.asarray(old[1] != new[1]), axis=(0, 2))
      np.testing.assert_array_equal(np.flatnonzero(changed), [2, 3])

  @parameterized.parameters({}, QWEN3_5)
  @pytest.mark.slow
  def test_chunks_fed_together_are_those_fed_one_after_the_other(
    self, **changes
  ):
    policy, params = make(**changes)
    rng = np.random.default_rng(4)
    first = Chunk(
      rng.integers(0, 50, (3, 1)),
      np.array([4, 2, 0]),
      np.array([1, 1, 0]),
      np.arange(3)[:, None],
      np.arange(3),
    )
    # Of slots 1 and 0, and of one that does not exist.
    second = Chunk(
      rng.integers(0, 50, (3, 4)),
      np.array([3, 5, 0]),
      np.array([4, 2, 4]),
      np.array([[1], [0], [3]]),
      np.array([1, 0, 3]),
    )
    filled = jax.tree.map(
      lambda x: x + jax.random.normal(jax.random.key(3), x.shape),
      policy.empty_cache(3, 8),
    )
    feed = jax.jit(
      lambda cache, *chunks: policy.extend_together(
        params, cache, [Chunk(*chunk) for chunk in chunks]
      )
    )
    fields = [dataclasses.astuple(chunk) for chunk in (first, second)]
    (one, two), together = feed(filled, *fields)
    (one_first,), cache = feed(filled, fields[0])
    (two_next,), in_turn = feed(cache, fields[1])
    np.testing.assert_allclose(one[:2], one_first[:2], atol=1e-5)
    np.testing.assert_allclose(two[0], two_next[0], atol=1e-5)
    np.testing.assert_allclose(two[1, :2], two_next[1, :2], atol=1e-5)
    for x, y in zip(*map(jax.tree.leaves, (together, in_turn)), strict=True):
      np.testing.assert_allclose(x, y, atol=1e-5)

  @parameterized.named_parameters(*VARIANTS)
  @pytest.mark.slow
  def test_packed_sequences_do_not_see_each_other(self, changes):
    policy, params = make(**changes)
    token, position, segment = rows([9, 6, 4])
    logits_of = jax.jit(policy.logits)
    together = logits_of(params, token, position, segment)[0]
    start = 0
    for length in (9, 6, 4):
      alone = token[:, start : start + length]
      logits = logits_of(
        params, alone, np.arange(length)[None], np.ones((1, length), int)
      )
      np.testing.assert_allclose(
        together[start : start + length], logits[0], atol=2e-5
      )
      start += length

  @pytest.mark.slow
  def test_padding_gives_finite_numbers(self):
    policy, params = make()
    logits = policy.logits(params, *rows([3]))
    self.assertTrue(bool(jnp.isfinite(logits).all()))

  def test_params_are_plain(self):
    policy = Policy(CONFIG, COMPUTE)
    params = policy.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    self.assertEqual(
      (tree, {isinstance(x, jax.Array) for x in leaves}, num_params(params)),
      (
        jax.tree.structure(policy.abstract_params()),
        {True},
        sum(x.size for x in leaves),
      ),
    )


class AlternatingConfig(ModelConfig):
  """Every second layer has experts, beginning with the second."""

  @property
  def layer_stacks(self):
    return ("dense_layers", "layers", "dense_layers", "layers", "dense_layers")


class ComputeTest(parameterized.TestCase):
  """However it is computed, it says and learns the same."""

  @parameterized.named_parameters(
    ("scan", {"scan_layers": True}),
    ("scan_again", {"scan_layers": True, "remat": "full"}),
    ("dots", {"remat": "dots"}),
    ("blocks", {"attention_block": 5}),
    ("delta", {"scan_layers": True, "remat": "full"}, QWEN3_NEXT),
    ("kept", {"scan_layers": True, "remat": "attention"}, QWEN3_5),
    ("shared", {"scan_layers": True}, GEMMA_4_E2B | {"num_layers": 8}),
    ("shared_again", {"scan_layers": True, "remat": "full"}, GEMMA_4_E2B),
  )
  @pytest.mark.slow
  def test_changes_nothing(self, settings, changes=MappingProxyType({})):
    policy, params = make(**changes)
    other = Policy(policy.config, compute_config(**settings))
    batch = rows([9, 6, 4])

    def total(of):
      return lambda params: (of.hidden(params, *batch) ** 3).sum()

    wanted, wanted_gradient = jax.jit(jax.value_and_grad(total(policy)))(params)
    found, gradient = jax.jit(jax.value_and_grad(total(other)))(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    chex.assert_trees_all_close(gradient, wanted_gradient, rtol=1e-4, atol=1e-4)

  def test_scanned_periods_are_the_layers_in_their_order(self):
    config = AlternatingConfig(
      **dataclasses.asdict(CONFIG) | GLM_4_5 | {"num_layers": 5}
    )
    policy = Policy(config, COMPUTE)
    other = Policy(config, compute_config(scan_layers=True))
    params, batch = policy.init(jax.random.key(0)), rows([9])
    expert_BTLK = np.random.default_rng(0).integers(
      8, size=(*batch[0].shape, 5, 3)
    )

    def total(of, params):
      hidden, same_LBT = of.routed_hidden(
        params, *batch, expert_BTLK=jnp.uint8(expert_BTLK)
      )
      return (hidden**3).sum(), same_LBT

    gradient_of = jax.jit(
      jax.grad(total, argnums=1, has_aux=True), static_argnums=0
    )
    wanted, found = gradient_of(policy, params), gradient_of(other, params)
    chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-5)
    self.assertEqual(found[1].shape, (2, *batch[0].shape))
    apart = policy.unstacked(params)
    for layer, width in zip(apart["layers"], [20, 24, 20, 24, 20], strict=True):
      self.assertEqual(layer["gate"]["kernel"].shape, (16, width))
    chex.assert_trees_all_close(total(policy, apart), total(policy, params))

  def test_scanned_layers_are_compiled_once(self):
    """The program does not grow with depth."""

    def size(num_layers, scan_layers):
      policy = Policy(
        dataclasses.replace(CONFIG, num_layers=num_layers),
        compute_config(scan_layers=scan_layers),
      )
      program = jax.jit(policy.hidden).lower(
        policy.abstract_params(), *rows([9])
      )
      return program.as_text().count("dot_general")

    self.assertEqual(size(2, True), size(3, True))
    self.assertLess(size(2, False), size(3, False))

  @pytest.mark.slow
  def test_bfloat16_stays_near(self):
    policy, params = make()
    half = Policy(policy.config, compute_config(dtype="bfloat16"))
    batch = rows([9, 6, 4])
    wanted, found = (p.hidden(params, *batch) for p in (policy, half))
    np.testing.assert_allclose(found, wanted, atol=0.15)
    self.assertEqual(
      (found.dtype, half.logits(params, *batch).dtype),
      (jnp.bfloat16, jnp.float32),
    )


class CriticTest(absltest.TestCase):
  def test_expects_nothing_until_it_is_trained(self):
    policy = Policy(dataclasses.replace(CONFIG, value_head=True), COMPUTE)
    params = policy.init(jax.random.key(0))
    hidden = np.random.default_rng(0).normal(size=(2, 3, CONFIG.width))
    np.testing.assert_array_equal(policy.value(params, hidden), 0)
    params["critic"] = {
      "kernel": np.ones((CONFIG.width, 1), np.float32),
      "bias": np.float32([2]),
    }
    np.testing.assert_allclose(
      policy.value(params, hidden), hidden.sum(axis=-1) + 2, rtol=1e-5
    )


class ConfigTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("heads", {"num_heads": 3}, "num_heads=3 must be a multiple"),
    ("odd", {"head_dim": 7}, "head_dim=7 must be even"),
    ("width", {"width": 0}, "width=0 must be at least 1"),
    ("few", {"num_experts": 4}, "experts_per_token=0 must lie .* 1 and .*=4"),
    ("many", {"num_experts": 4, "experts_per_token": 5}, "per_token=5 must"),
    ("idle", {"experts_per_token": 1}, "or both be 0"),
    ("no_router", {"shared_experts": 1}, "=1 means nothing with model.num_exp"),
    ("softmax", GLM_4_5 | {"sigmoid_router": False}, "scale=2.5 means nothing"),
    ("groups", GLM_4_5 | {"expert_groups": 8}, "groups of two or more"),
    ("group", GLM_4_5 | {"groups_per_token": 1}, "and hold .*_per_token=3"),
    ("dense", GLM_4_5 | {"dense_layers": 2}, "from 1 to .* - 1 = 1 and"),
    ("idle_value", {"value_dim": 5}, "=5 means nothing with .*latent_dim=0"),
    ("latent_heads", LATENTS | {"num_kv_heads": 2}, "be model.num_heads=4"),
    ("latent_norm", LATENTS | {"qk_norm": True}, "True means .*latent_dim=10"),
    ("latent_turn", LATENTS | {"rotary_key_dim": 8}, "between 0 and .*_dim=8"),
    ("no_width", GLM_4_5 | {"dense_mlp_width": 0}, "dense_mlp_width=0 above"),
    (
      "share",
      {"partial_rotary_factor": 0.0},
      "partial_rotary_factor=0.0 must lie",
    ),
    (
      "odd_share",
      {"partial_rotary_factor": 0.4},
      "head_dim=8 x partial_rotary_factor=0.4",
    ),
    (
      "joint",
      {"qk_norm": False, "joint_qk_norm": True},
      "joint_qk_norm=True says how",
    ),
    ("delta", {"delta_taps": 4}, "taps=4 means nothing with model.delta_heads"),
    (
      "values",
      QWEN3_5 | {"delta_heads": 3},
      "=3 a multiple of model.delta_key",
    ),
    (
      "period",
      QWEN3_5 | {"delta_period": 3},
      "delta_period=3 must be from 2 to",
    ),
    ("local", QWEN3_5 | {"window": 3}, "model.window=3 go without model.delta"),
    ("rope", {"rope_type": "yarn"}, "needs model.rope_original_context=0"),
    ("rope_theta", STRETCHED | {"rope_theta": 1.0}, "rope_theta=1.0 above 1"),
    ("rope_type", {"rope_type": "dynamic"}, "one of default, linear, llama3, "),
    ("rope_idle", {"rope_factor": 8.0}, "rope_factor=8.0 means nothing with"),
    (
      "yarn_idle",
      STRETCHED | {"rope_truncate": False},
      "rope_truncate=False means nothing with model.rope_type='llama3'",
    ),
    (
      "rope_factor",
      STRETCHED | {"rope_factor": 0.5},
      "rope_factor=0.5 must be at least 1",
    ),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      dataclasses.replace(CONFIG, **changes)
