"""Tests of `train.objective`: losses and metrics by config."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax import losses
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.learner import OptimizerConfig, make_optimizer
from agentrl_jax.train.objective import (
  batch_loss,
  policy_objective,
  sequences_of,
  supervised_objective,
)
from agentrl_jax.train.token_logprobs import chunk_of, token_logprobs
from configs.ablations import objectives
from launch.config.settings import read_settings
from tests.settings import COMPUTE
from tests.train import small

SAPO = {"surrogate": "sapo", "dual_clip": 0.0}
KL = {"kl_coefficient": 0.1}


def _micro_batch():
  (micro_batch,) = small.make_batches(micro_batch=24)
  return micro_batch


class TokenLogprobsTest(absltest.TestCase):
  @pytest.mark.slow
  def test_entry_t_is_about_token_t(self):
    policy = Policy(small.MODEL, COMPUTE)
    params = policy.init(jax.random.key(0))
    batch = _micro_batch().batch
    found, _ = token_logprobs(
      policy, params, batch, temperature=0.7, chunk_size=8
    )
    logits = policy.logits(params, batch.token, batch.position, batch.segment)
    wanted = np.asarray(jax.nn.log_softmax(logits / 0.7))
    for b, t in zip(*np.nonzero(batch.mask), strict=True):
      self.assertAlmostEqual(
        float(found[b, t]), wanted[b, t - 1, batch.token[b, t]], places=4
      )


class BatchLossTest(parameterized.TestCase):
  """`batch_loss` by config, on log-probabilities that no policy computed."""

  def setUp(self):
    super().setUp()
    self.micro_batch, self.logprob, self.entropy, self.other = (
      small.off_policy_batch()
    )

  def _loss(self, changes, logprob):
    return batch_loss(
      small.loss_config(**changes), self.micro_batch, logprob, self.entropy
    )

  def _value(self, **changes):
    loss, metrics = self._loss(changes, self.logprob)
    return float(loss.value()), metrics

  def _gradient(self, **changes):
    slope = jax.grad(lambda x: self._loss(changes, x)[0].value())
    return np.asarray(jax.jit(slope)(self.logprob))

  def _refer(self, logprob=None):
    """Pulls towards a reference, another policy if none is given."""
    logprob = self.other if logprob is None else logprob
    self.micro_batch = dataclasses.replace(
      self.micro_batch, reference_logprob=logprob
    )

  def _recompute(self):
    self.micro_batch = dataclasses.replace(
      self.micro_batch, proximal_logprob=self.logprob
    )

  @parameterized.named_parameters(
    ("reinforce", {"surrogate": "reinforce", "dual_clip": 0.0}),
    ("cispo", {"surrogate": "cispo", "dual_clip": 0.0}),
    ("dppo_tv", {"surrogate": "dppo_tv", "dual_clip": 0.0}),
    ("dppo_kl", {"surrogate": "dppo_kl", "dual_clip": 0.0}),
    ("gspo", {"surrogate": "gspo", "dual_clip": 0.0}),
    ("sapo", SAPO),
    ("gmpo", {"surrogate": "gmpo", "dual_clip": 0.0}),
    ("stale_failures", {"stale_failures": 0.1}),
    ("sequence_mean", {"reduction": "sequence_mean"}),
    ("sequence_sum_mean", {"reduction": "sequence_sum_mean"}),
    (
      "fixed",
      {"reduction": "fixed_length_mean", "reduction_settings": {"length": 9}},
    ),
    ("clip_low", {"clip_low": 0.9}),
    ("clip_high", {"clip_high": 1.5}),
    ("dual_clip", {"dual_clip": 0.0}),
    ("entropy", {"entropy_coefficient": 0.1}),
    ("sapo_positive", {"surrogate_settings": {"tau_positive": 3.0}}, SAPO),
    ("sapo_negative", {"surrogate_settings": {"tau_negative": 3.0}}, SAPO),
    ("kl_coefficient", {"kl_coefficient": 0.2}, KL),
    ("kl_k2", {"kl_estimator": "k2"}, KL),
    ("kl_unbiased", {"kl_estimator": "unbiased"}, KL),
  )
  def test_every_loss_key_changes_the_loss(self, changes, others=()):
    others = dict(others)
    if "kl_coefficient" in others:
      self._refer()
    self.assertNotAlmostEqual(
      self._value(**others | changes)[0], self._value(**others)[0], places=6
    )

  def test_what_is_outside_the_clip_is_measured_as_the_surrogate_does(self):
    mask = self.micro_batch.batch.mask
    log_ratio = np.where(
      mask, self.logprob - self.micro_batch.batch.behavior_logprob, 0
    )
    policy = np.exp(np.where(mask, self.logprob, 0))
    sequence = losses.sequence_log_ratio(
      log_ratio, mask, **sequences_of(self.micro_batch.batch), average=True
    )
    for surrogate, moved in {
      "gspo": np.expm1(sequence),
      "gspo_token": np.expm1(sequence),
      "reinforce": np.expm1(log_ratio),
      "gmpo": log_ratio,
      "dppo_tv": policy - policy / np.exp(log_ratio),
    }.items():
      with self.subTest(surrogate):
        _, metrics = self._value(
          surrogate=surrogate, dual_clip=0.0, clip_low=0.01, clip_high=0.02
        )
        outside = (moved < -0.01) | (moved > 0.02)
        self.assertAlmostEqual(
          float(metrics["policy/ratio_outside_clip"].value()),
          outside[mask].mean(),
          places=6,
        )

  def test_one_update_of_a_recomputed_policy_is_never_clipped(self):
    def change_by_the_clip():
      narrow, wide = (
        self._gradient(dual_clip=0.0, clip_low=low, clip_high=high)
        for low, high in ((0.001, 0.001), (0.999, 100.0))
      )
      return np.abs(narrow - wide).max()

    self.assertGreater(change_by_the_clip(), 1e-4)
    self._recompute()
    self.assertEqual(change_by_the_clip(), 0)

  @pytest.mark.slow
  def test_gspo_of_tokens_differs_where_advantages_do(self):
    gspo = {"surrogate": "gspo", "dual_clip": 0.0}
    of_tokens = gspo | {"surrogate": "gspo_token"}
    np.testing.assert_allclose(
      self._gradient(**gspo), self._gradient(**of_tokens), atol=1e-6
    )
    mask = self.micro_batch.batch.mask
    advantage = np.random.default_rng(1).normal(size=mask.shape)
    self.micro_batch = dataclasses.replace(
      self.micro_batch, advantage=np.where(mask, advantage, 0)
    )
    difference = self._gradient(**gspo) - self._gradient(**of_tokens)
    self.assertGreater(np.abs(difference).max(), 1e-3)

  def test_k3_with_the_gradient_of_k2(self):
    self._refer()
    both = {"kl_coefficient": 5.0, "kl_estimator": "k3_k2"}
    k2, k3 = both | {"kl_estimator": "k2"}, both | {"kl_estimator": "k3"}
    self.assertAlmostEqual(
      self._value(**both)[0], self._value(**k3)[0], places=5
    )
    of_both, of_k2, of_k3 = (self._gradient(**x) for x in (both, k2, k3))
    np.testing.assert_allclose(of_both, of_k2, atol=1e-6)
    self.assertGreater(np.abs(of_both - of_k3).max(), 1e-2)

  def test_kl_to_itself_is_nothing(self):
    plain, _ = self._value()
    self._refer(self.logprob)
    value, metrics = self._value(kl_coefficient=5.0)
    self.assertAlmostEqual(value, plain, places=5)
    kl = float(metrics["policy/kl_to_reference"].value())
    self.assertAlmostEqual(kl, 0, places=5)

  @parameterized.named_parameters(
    ("truncated", {"importance": "truncated", "importance_high": 1.1}),
    ("masked", {"importance": "masked", "importance_low": 0.8}),
    ("sequence", {"importance": "truncated", "importance_level": "sequence"}),
    (
      "sequence_mean",
      {"importance": "truncated", "importance_level": "sequence_mean"},
    ),
  )
  def test_decoupled_weighs_by_what_the_ratio_leaves_out(self, changes):
    self._recompute()
    found, metrics = self._value(proximal="recomputed", **changes)
    plain, _ = self._value(proximal="recomputed")
    self.assertNotAlmostEqual(found, plain, places=6)
    self.assertIn("policy/importance_weight", metrics)

  def test_decoupled_is_the_library_s(self):
    self._recompute()
    found, _ = self._value(
      proximal="recomputed",
      importance="masked",
      importance_high=1.5,
      dual_clip=0.0,
    )
    batch, micro_batch = self.micro_batch.batch, self.micro_batch
    wanted = losses.decoupled_surrogate(
      jnp.zeros(batch.mask.shape),  # the policy is the proximal one still
      micro_batch.advantage,
      losses.log_ratio(
        micro_batch.proximal_logprob, batch.behavior_logprob, batch.mask
      ),
      clip_low=0.2,
      clip_high=0.2,
      weight_cap=1.5,
    )
    wanted = losses.token_mean(wanted, batch.mask).value()
    self.assertAlmostEqual(found, float(wanted), places=5)

  def test_weights_of_tasks(self):
    plain, _ = self._value()
    weight = np.where(self.micro_batch.batch.trajectory % 2, 2.0, 0.5)
    self.micro_batch = dataclasses.replace(self.micro_batch, weight=weight)
    self.assertNotAlmostEqual(self._value()[0], plain, places=5)

  def test_policy_slots_are_told_apart(self):
    policy_slot = np.where(self.micro_batch.batch.trajectory % 2, 1, 0)
    batch = dataclasses.replace(self.micro_batch.batch, policy_slot=policy_slot)
    micro_batch = dataclasses.replace(self.micro_batch, batch=batch)
    _, metrics = batch_loss(
      small.loss_config(),
      micro_batch,
      self.logprob,
      self.entropy,
      num_policy_slots=2,
    )
    moments = metrics["policy/policy_slot"]
    np.testing.assert_allclose(
      moments.count_Z, [(batch.mask & (policy_slot == z)).sum() for z in (0, 1)]
    )
    self.assertLess(np.max(moments.effective_sample_size()), 1)


class ObjectiveTest(absltest.TestCase):
  """Objectives of a policy against `batch_loss` of its log-probabilities."""

  def setUp(self):
    super().setUp()
    self.policy = Policy(small.MODEL, COMPUTE)
    self.params = small.params_of()
    self.micro_batch = _micro_batch()

  def _loss(self, objective):
    return float(jax.jit(objective)(self.params, self.micro_batch)[0].value())

  def _logprobs(self, temperature):
    logprobs = functools.partial(
      token_logprobs, self.policy, temperature=temperature, chunk_size=8
    )
    return jax.jit(logprobs)(self.params, self.micro_batch.batch)

  @pytest.mark.slow
  def test_policy_objective_is_the_loss_of_its_logprobs(self):
    config = small.loss_config()
    objective = policy_objective(self.policy, config, temperature=0.9)
    loss, metrics = objective(self.params, self.micro_batch)
    wanted, _ = batch_loss(config, self.micro_batch, *self._logprobs(0.9))
    self.assertAlmostEqual(float(loss.value()), float(wanted.value()), places=6)
    self.assertGreater(float(metrics["policy/entropy"].value()), 1)

  def test_a_cpu_cuts_rows_into_few_equal_chunks(self):
    """Of 256 MiB of float32 logits; other platforms keep their own size."""
    config = dataclasses.replace(self.policy.config, vocab_size=1 << 16)
    policy = mock.Mock(config=config, mesh=None)
    for shape, chunk in (((1, 700), 700), ((1, 1100), 550), ((16, 300), 100)):
      self.assertEqual(chunk_of(policy, *shape), chunk)
    policy.mesh = mock.Mock()
    policy.mesh.devices.flat = [mock.Mock(platform="tpu")]
    self.assertEqual(chunk_of(policy, 1, 700), 128)

  def test_a_chunk_of_0_gives_the_same_loss(self):
    losses_of = [
      self._loss(
        policy_objective(
          self.policy, small.loss_config(token_chunk=chunk), temperature=0.9
        )
      )
      for chunk in (0, 8)
    ]
    np.testing.assert_allclose(*losses_of, rtol=1e-5)

  def test_supervised_is_negative_log_likelihood(self):
    objective = supervised_objective(self.policy, small.loss_config())
    logprob, _ = self._logprobs(1.0)
    wanted = -np.asarray(logprob)[self.micro_batch.batch.mask].mean()
    self.assertAlmostEqual(self._loss(objective), wanted, places=5)


class ConfigTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("clip", {"clip_low": 2.0}, "clip_low=2.0 must be below 1"),
    ("dual", {"dual_clip": 1.1}, "dual_clip=1.1 must be 0 .off. or above"),
    ("idle", {"surrogate": "reinforce"}, "means nothing for loss.surrogate"),
    ("twice", {"importance": "truncated"}, "would correct twice"),
    (
      "low",
      {
        "proximal": "recomputed",
        "importance": "truncated",
        "importance_low": 0.5,
      },
      "importance_low=0.5 means nothing",
    ),
    (
      "bounds",
      {"proximal": "recomputed", "importance": "masked", "importance_low": 3.0},
      "importance_low=3.0 must be below",
    ),
    ("k1", {"kl_estimator": "k1"}, "has a gradient of mean zero"),
    ("reward", {"kl_place": "reward"}, "does nothing with"),
    (
      "gradients",
      {"kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "unbiased"},
      "in the reward has none",
    ),
    ("length", {"reduction": "fixed_length_mean"}, "must be the number of"),
    (
      "idle_length",
      {"reduction_settings": {"length": 3}},
      "length means nothing for loss.reduction='token_mean'",
    ),
    (
      "part_of_a_token",
      {"reduction": "fixed_length_mean", "reduction_settings": {"length": 3.5}},
      "length=3.5 must be the number of tokens",
    ),
    (
      "share",
      {"reduction": "sequence_mean", "task_share": "equal"},
      "weighs tokens, and",
    ),
    ("idle_level", {"importance_level": "sequence"}, "without loss.importan"),
    ("idle_clip", {"value_clip": 0.2}, "without loss.value_coefficient"),
    (
      "tau",
      {**SAPO, "surrogate_settings": {"tau_positive": 0.0}},
      "tau_positive=0.0 must be a positive number",
    ),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      small.loss_config(**changes)


class OptimizerTest(parameterized.TestCase):
  BASE = {
    "learning_rate": 0.1,
    "warmup_steps": 3,
    "final_lr_ratio": 0.1,
    "b1": 0.9,
    "b2": 0.95,
    "weight_decay": 0.0,
    "clip_norm": 1.0,
    "expert_bias_rate": 0.0,
  }

  def test_warms_up_and_decays(self):
    optimizer = make_optimizer(OptimizerConfig(**self.BASE), 20)
    params, sizes = np.zeros(1, np.float32), []
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for _ in range(20):
      updates, state = update(np.ones(1, np.float32), state, params)
      sizes.append(-updates.item())
    self.assertAlmostEqual(sizes[0], 0.025, places=3)
    self.assertAlmostEqual(max(sizes), 0.1, places=3)
    self.assertEqual(int(np.argmax(sizes)), 3)
    self.assertLess(sizes[-1], 0.015)


class ObjectivesTest(parameterized.TestCase):
  # One of each way through the code; `settings_test` reads them all.
  @parameterized.parameters("cispo", "decoupled", "turn_ppo")
  @pytest.mark.slow
  def test_makes_an_update(self, arm):
    self.require_update(arm)

  @parameterized.parameters("agentrl", "gspo_token", "pass_at_k")
  @pytest.mark.full
  def test_others_make_an_update_too(self, arm):
    self.require_update(arm)

  def require_update(self, arm):
    settings = read_settings(objectives.get_config(arm))
    loss = dataclasses.replace(settings.loss, token_chunk=8)
    model = dataclasses.replace(
      small.MODEL, value_head=settings.model.value_head
    )
    advantage = settings.advantage
    if "k" in advantage.estimator_settings:  # half of the four attempts
      advantage = dataclasses.replace(advantage, estimator_settings={"k": 2})
    builder = small.make_batch_builder(
      model=model, loss=loss, advantage=advantage
    )
    policy, learner = small.make_learner(model=model, loss=loss)
    params = Policy(model, COMPUTE).init(jax.random.key(0))
    state = learner.init(params)
    groups = small.make_groups(full_marks=True)
    batches, report = builder.build(groups, state.params)
    self.assertGreater(report["batch/trained_tokens"], 20)
    state, metrics = learner.update(state, batches)
    for name, value in metrics.items():
      self.assertTrue(np.isfinite(value), name)
    moved = jax.tree.map(
      lambda a, b: np.abs(a - b).max() > 0, state.params, params
    )
    self.assertTrue(moved["layers"]["attention"]["q"]["kernel"])
    if model.value_head:
      self.assertTrue(moved["critic"]["bias"])
