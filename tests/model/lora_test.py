"""Adapters are what changes, and merging them changes nothing."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.policy import Policy, num_params
from agentrl_jax.train.weights.reference import Reference
from tests.settings import COMPUTE, compute_config, lora_config
from tests.train import small

MODEL = ModelConfig(
  vocab_size=61,
  width=32,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=48,
  qkv_bias=True,
  value_head=True,
)
CONFIG = lora_config(rank=3, alpha=6.0)
TOKENS = jnp.arange(40).reshape(2, 20) % MODEL.vocab_size
ROWS = (TOKENS, jnp.tile(jnp.arange(20), (2, 1)), jnp.ones((2, 20), int))


def policy_of(config: LoraConfig = CONFIG, **compute) -> Policy:
  return Policy(MODEL, compute_config(**compute), adaptation=config)


@functools.cache
def base():
  return Policy(MODEL, COMPUTE).init(jax.random.key(0))


def adapted(policy: Policy):
  """Params whose adapters do something: trained ones, and frozen ones."""
  trained, frozen = policy.split(base(), jax.random.key(1))
  rng = np.random.default_rng(2)
  return jax.tree.map(
    lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), trained
  ), frozen


def logits_of(policy: Policy, params):
  return jax.jit(policy.logits)(params, *ROWS)


def by_hand(params):
  """Plain params, one projection at a time; for `jax.grad` to go through."""

  def add(part):
    if not isinstance(part, dict):
      return part
    if "lora_a" in part:
      layers, rank = part["kernel"].shape[0], part["lora_b"].shape[1]
      a = part["lora_a"].reshape(layers, -1, rank)
      b = part["lora_b"].reshape(layers, rank, -1)
      delta = CONFIG.scale * jnp.einsum("lir,lro->lio", a, b)
      rest = {n: p for n, p in part.items() if not n.startswith("lora")}
      return rest | {
        "kernel": part["kernel"] + delta.reshape(part["kernel"].shape)
      }
    return {name: add(p) for name, p in part.items()}

  return add(params)


class AdapterTest(parameterized.TestCase):
  @parameterized.parameters((True, "full"), (False, "none"))
  @pytest.mark.slow
  def test_logits_and_gradients(self, scan_layers, remat):
    policy = policy_of(scan_layers=scan_layers, remat=remat)
    trained, frozen = adapted(policy)

    def ours(trained):
      logits = policy.logits(policy.whole(trained, frozen), *ROWS)
      return jnp.sum(jnp.sin(logits)), logits

    def plainly(trained):
      logits = policy.logits(by_hand(policy.whole(trained, frozen)), *ROWS)
      return jnp.sum(jnp.sin(logits)), logits

    slope, logits = jax.jit(jax.grad(ours, has_aux=True))(trained)
    wanted, wanted_logits = jax.jit(jax.grad(plainly, has_aux=True))(trained)
    np.testing.assert_allclose(logits, wanted_logits, atol=2e-6)
    for a, b in zip(
      jax.tree.leaves(slope), jax.tree.leaves(wanted), strict=True
    ):
      np.testing.assert_allclose(a, b, atol=2e-6 * float(jnp.abs(b).max() + 1))

  @pytest.mark.slow
  def test_fresh_adapters_change_nothing(self):
    policy = policy_of()
    trained, frozen = policy.split(base(), jax.random.key(1))
    np.testing.assert_allclose(
      logits_of(policy, policy.whole(trained, frozen)),
      logits_of(policy, base()),
      atol=1e-6,
    )

  @pytest.mark.slow
  def test_merged_is_the_same_policy(self):
    policy = policy_of()
    trained, frozen = adapted(policy)
    whole = policy.whole(trained, frozen)
    plain = policy.plain(whole)
    chex.assert_trees_all_close(plain, by_hand(whole), rtol=1e-7, atol=1e-6)
    self.assertFalse(lora.is_adapted(plain["layers"]))
    np.testing.assert_allclose(
      logits_of(Policy(MODEL, COMPUTE), plain),
      logits_of(policy, whole),
      atol=1e-6,
    )

  @pytest.mark.slow
  def test_decoding_with_adapters(self):
    policy = policy_of()
    whole = policy.whole(*adapted(policy))
    cache = policy.empty_cache(2, 20)
    start, length = jnp.zeros(2, int), jnp.full(2, 20)
    hidden, _ = jax.jit(policy.extend)(whole, cache, TOKENS, start, length)
    wanted = jax.jit(policy.hidden)(whole, *ROWS)
    np.testing.assert_allclose(hidden, wanted, atol=1e-5)

  def test_split_and_whole_are_inverse(self):
    policy = policy_of()
    trained, frozen = adapted(policy)
    again, rest = policy.split(policy.whole(trained, frozen), jax.random.key(5))
    jax.tree.map(
      np.testing.assert_array_equal, (again, rest), (trained, frozen)
    )
    self.assertIn("critic", trained)
    self.assertEqual(
      jax.tree.map(jnp.shape, policy.abstract_split()[0]),
      jax.tree.map(jnp.shape, trained),
    )

  def test_targets(self):
    policy = policy_of(lora_config(rank=2, targets=("q", "down")))
    trained, frozen = policy.split(base(), jax.random.key(1))
    self.assertEqual(set(trained["layers"]), {"attention", "down"})
    self.assertEqual(set(trained["layers"]["attention"]), {"q"})
    logits_of(policy, policy.whole(trained, frozen))

  def test_off(self):
    policy = policy_of(lora_config())
    trained, frozen = policy.split(base(), jax.random.key(1))
    self.assertIs(trained, base())
    self.assertIsNone(frozen)
    self.assertIs(policy.plain(policy.whole(trained, frozen)), base())

  @pytest.mark.slow
  def test_every_adapter_has_a_place_on_a_mesh(self):
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    policy = Policy(MODEL, COMPUTE, mesh=mesh, adaptation=CONFIG)
    places = sharding.param_shardings(policy.abstract_split()[0], mesh)
    self.assertEqual(
      places["layers"]["attention"]["q"]["lora_b"].spec,
      jax.sharding.PartitionSpec(None, None, "tensor", None, None),
    )
    trained, _ = policy.split(base(), jax.random.key(1))
    jax.tree.map(
      lambda x, place: self.assertEqual(x.sharding, place),
      trained["layers"],
      places["layers"],
    )

  @parameterized.parameters(
    ({"rank": 1, "targets": ("q", "query")}, "lora.targets"),
    ({"rank": 1, "targets": ()}, "lora.targets"),
  )
  def test_refusals(self, settings, pattern):
    with self.assertRaisesRegex(ConfigError, pattern):
      lora_config(**settings)


class ReferenceTest(absltest.TestCase):
  def test_the_frozen_params_are_the_reference(self):
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    policy = Policy(MODEL, COMPUTE, mesh=mesh, adaptation=CONFIG)
    places = sharding.param_shardings(policy.abstract_params(), mesh)
    params = jax.device_put(base(), places)
    reference = Reference(
      policy, policy.plain(params), place="resident"
    ).fetch()
    for a, b in zip(
      jax.tree.leaves(reference), jax.tree.leaves(params), strict=True
    ):
      self.assertIs(a, b)


class LearningTest(absltest.TestCase):
  @pytest.mark.slow
  def test_only_adapters_learn(self):
    policy, learner = small.make_learner(
      loss=small.loss_config(surrogate="reinforce", dual_clip=0.0),
      adaptation=lora_config(rank=4, alpha=16.0),
      learning_rate=1e-2,
    )
    params = jax.jit(policy.init)(jax.random.key(0))
    trained, frozen = policy.split(params, jax.random.key(1))
    before = jax.tree.map(np.asarray, params)
    state, batches = learner.init(trained), small.make_batches(4)
    losses = []
    for _ in range(8):
      state, metrics = learner.update(state, batches, frozen)
      losses.append(metrics["loss"])
    self.assertLess(losses[-1], losses[0] - 0.05)
    jax.tree.map(np.testing.assert_array_equal, params, before)
    moments = sum(x.size for x in jax.tree.leaves(state.optimizer) if x.ndim)
    self.assertEqual(moments, 2 * num_params(trained))
    self.assertLess(num_params(trained), num_params(params) / 2)
    traced = learner.traced(batches[0])
    self.assertSetEqual(set(traced), {"gradient", "apply"})
