"""Tests of `losses.policy_gradient` against papers and limits."""

import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad
from tests.reference import policy_gradient as reference

policy_gradient = functions_of(losses.policy_gradient)
ratios = functions_of(losses.ratios)
reductions = functions_of(losses.reductions)
logits = functions_of(losses.logprobs.logits)
B, T, V = 4, 7, 5


def _inputs(seed: int, scale: float = 0.8):
  rng = np.random.default_rng(seed)
  log_ratio_BT = rng.normal(scale=scale, size=(B, T)).astype(np.float32)
  advantage_BT = rng.normal(size=(B, T)).astype(np.float32)
  return log_ratio_BT, advantage_BT


@functools.partial(jax.jit, static_argnums=0)
def _gradient(loss, log_ratio_BT, *constants):
  return jax.grad(lambda x_BT: loss(x_BT, *constants).sum())(log_ratio_BT)


DUAL_CLIPPED = functools.partial(
  policy_gradient.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=3.0
)


class ClippedSurrogateTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("good_token_already_likelier", 1.0, 1.0, True),
    ("good_token_made_rarer", -1.0, 1.0, False),
    ("good_token_far_likelier", 2.0, 1.0, True),
    ("bad_token_already_rarer", -1.0, -1.0, True),
    ("bad_token_made_likelier", 1.0, -1.0, False),
    ("bad_token_beyond_the_dual_clip", 1.2, -1.0, True),
  )
  def test_gradient_stops_only_where_the_step_was_taken(
    self, log_ratio, advantage, stops
  ):
    gradient = _gradient(
      DUAL_CLIPPED, np.full((1, 1), log_ratio), np.full((1, 1), advantage)
    )
    expected = 0.0 if stops else -advantage * math.exp(log_ratio)
    np.testing.assert_allclose(gradient, [[expected]], rtol=1e-5)

  def test_at_the_very_bound_the_gradient_is_still_whole(self):
    log_ratio_BT = np.array([[0.5, -0.5]])
    ratio_BT = jnp.exp(log_ratio_BT)
    gradient_BT = _gradient(
      functools.partial(
        policy_gradient.clipped_surrogate,
        clip_low=1 - ratio_BT[0, 1],
        clip_high=ratio_BT[0, 0] - 1,
      ),
      log_ratio_BT,
      np.array([[1.0, -1.0]]),
    )
    np.testing.assert_allclose(gradient_BT, ratio_BT * np.array([[-1, 1]]))

  def test_dual_clip_touches_only_bad_tokens_made_much_likelier(self):
    log_ratio_BT, advantage_BT = _inputs(seed=3, scale=2.0)
    clipped = functools.partial(
      policy_gradient.clipped_surrogate, clip_low=0.2, clip_high=0.2
    )
    changed_BT = np.not_equal(
      clipped(log_ratio_BT, advantage_BT, dual_clip=3.0),
      clipped(log_ratio_BT, advantage_BT),
    )
    expected_BT = (advantage_BT < 0) & (np.exp(log_ratio_BT) > 3)
    self.assertTrue(expected_BT.any())
    np.testing.assert_array_equal(changed_BT, expected_BT)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_is_pessimistic_and_dual_clip_bounded(self, seed):
    log_ratio_BT, advantage_BT = _inputs(seed, scale=2.0)
    clipped = functools.partial(
      policy_gradient.clipped_surrogate, clip_low=0.2, clip_high=0.28
    )
    loss_BT = np.asarray(clipped(log_ratio_BT, advantage_BT))
    reinforce_BT = policy_gradient.reinforce(log_ratio_BT, advantage_BT)
    self.assertTrue((loss_BT >= np.asarray(reinforce_BT)).all())
    dual_BT = np.asarray(clipped(log_ratio_BT, advantage_BT, dual_clip=3.0))
    self.assertTrue((dual_BT <= loss_BT).all())
    self.assertTrue((dual_BT <= 3.0 * np.abs(advantage_BT)).all())

  def test_bounds_that_never_bind_leave_reinforce(self):
    inputs = _inputs(seed=4)
    np.testing.assert_allclose(
      policy_gradient.clipped_surrogate(
        *inputs, clip_low=0.999, clip_high=1e3, dual_clip=1e4
      ),
      policy_gradient.reinforce(*inputs),
      rtol=1e-6,
    )

  def test_extreme_ratios_keep_gradients_finite(self):
    log_ratio_BT = np.array([[20.0, 20.0, 20.0, -20.0, -20.0, -20.0]])
    advantage_BT = np.array([[1.0, -1.0, 0.0, 1.0, -1.0, 0.0]])
    for loss in (policy_gradient.reinforce, DUAL_CLIPPED):
      gradient_BT = _gradient(loss, log_ratio_BT, advantage_BT)
      self.assertTrue(np.isfinite(gradient_BT).all())


CLIP = dict(clip_low=0.2, clip_high=0.3)
DPPO = dict(clip_low=0.02, clip_high=0.03, weight_cap=1.5)


def _batch(seed: int, scale: float = 0.6):
  """(policy, behavior, proximal, advantage, mask); NaN off the mask."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  behavior_BT = np.minimum(rng.normal(-2, 1, size=(B, T)), -0.05)
  moved_BT = behavior_BT + rng.normal(scale=scale, size=(2, B, T))
  policy_BT, proximal_BT = np.minimum(moved_BT, -0.05)
  advantage_BT = rng.normal(size=(B, T)) * (rng.random((B, T)) < 0.9)
  arrays = (policy_BT, behavior_BT, proximal_BT, advantage_BT)
  return *(np.where(mask_BT, x_BT, np.nan) for x_BT in arrays), mask_BT


def _decoupled(batch, surrogate, log_ratio, **settings):
  policy_BT, behavior_BT, proximal_BT, advantage_BT, mask_BT = batch
  return surrogate(
    log_ratio(policy_BT, proximal_BT, mask_BT),
    advantage_BT,
    log_ratio(proximal_BT, behavior_BT, mask_BT),
    **settings,
  )


def _cispo(batch, surrogate, log_ratio, *, constant_BT=None, **settings):
  policy_BT, behavior_BT, _, advantage_BT, mask_BT = batch
  constant_BT = policy_BT if constant_BT is None else constant_BT
  return surrogate(
    log_ratio(constant_BT, behavior_BT, mask_BT),
    advantage_BT,
    policy_BT,
    mask_BT,
    **settings,
  )


def _plain(batch, surrogate, log_ratio, **settings):
  policy_BT, behavior_BT, _, advantage_BT, mask_BT = batch
  return surrogate(
    log_ratio(policy_BT, behavior_BT, mask_BT), advantage_BT, **settings
  )


def _case(name: str, function: str, call, **settings):
  return (
    name,
    functools.partial(
      call,
      surrogate=getattr(policy_gradient, function),
      log_ratio=ratios.log_ratio,
      **settings,
    ),
    functools.partial(
      call,
      surrogate=getattr(reference, function),
      log_ratio=lambda x, y, m: np.where(m, np.subtract(x, y), 0),
      **settings,
    ),
  )


ALL = (
  _case("reinforce", "reinforce", _plain),
  _case("ppo", "clipped_surrogate", _plain, clip_low=0.2, clip_high=0.2),
  _case("clip_higher", "clipped_surrogate", _plain, **CLIP),
  _case("narrow", "clipped_surrogate", _plain, clip_low=1e-3, clip_high=1e-3),
  _case("agentrl", "clipped_surrogate", _plain, dual_clip=3.0, **CLIP),
  _case("decoupled", "decoupled_surrogate", _decoupled, **CLIP),
  _case(
    "decoupled_capped",
    "decoupled_surrogate",
    _decoupled,
    dual_clip=2.0,
    weight_cap=1.2,
    **CLIP,
  ),
  _case("cispo", "cispo", _cispo, **CLIP),
  _case("cispo_unbounded_below", "cispo", _cispo, clip_low=9, clip_high=2),
  _case("dppo_tv", "dppo", _cispo, divergence="tv", **DPPO),
  _case("dppo_kl", "dppo", _cispo, divergence="kl", **DPPO),
  _case("sapo", "sapo", _plain),
  _case("sapo_steep", "sapo", _plain, tau_positive=2.0, tau_negative=3.0),
)


def _dppo(policy_BT, log_ratio_BT, advantage_BT, mask_BT, **settings):
  return policy_gradient.dppo(
    log_ratio_BT, advantage_BT, policy_BT, mask_BT, **settings
  )


NARROW_DPPO = {
  name: functools.partial(
    _dppo, divergence=name, clip_low=bound, clip_high=bound
  )
  for name, bound in (("tv", 0.15), ("kl", 0.05))
}


def _objective(loss, batch):
  def value(policy_BT):
    loss_BT = loss((policy_BT, *batch[1:]))
    return reductions.token_mean(loss_BT, batch[-1]).value()

  return value


class SurrogatesTest(parameterized.TestCase):
  @parameterized.named_parameters(*ALL)
  def test_on_policy_gradient_is_reinforce(self, loss, _):
    policy_BT, _, _, advantage_BT, mask_BT = _batch(seed=3)
    batch = (policy_BT, policy_BT, policy_BT, advantage_BT, mask_BT)
    with jax.enable_x64(True):
      gradient_BT = grad(_objective(loss, batch))(policy_BT)
    np.testing.assert_allclose(
      gradient_BT,
      np.where(mask_BT, -advantage_BT, 0) / mask_BT.sum(),
      atol=1e-15,
    )

  def test_decoupled_without_clipping_is_reinforce_on_the_whole_ratio(self):
    batch = tuple(np.nan_to_num(x) for x in _batch(seed=6))
    policy_BT, behavior_BT, proximal_BT, advantage_BT, _ = batch
    with jax.enable_x64(True):
      loss_BT = policy_gradient.decoupled_surrogate(
        policy_BT - proximal_BT,
        advantage_BT,
        proximal_BT - behavior_BT,
        clip_low=1.0,
        clip_high=1e9,
      )
      reinforce_BT = policy_gradient.reinforce(
        policy_BT - behavior_BT, advantage_BT
      )
    np.testing.assert_allclose(loss_BT, reinforce_BT, rtol=1e-12)

  def test_no_token_of_cispo_loses_its_gradient(self):
    log_ratio_BT = np.array([[-5.0, -0.1, 0.0, 0.1, 5.0]])
    gradient_BT = grad(
      lambda x: policy_gradient.cispo(
        log_ratio_BT, np.ones((1, 5)), x, np.ones((1, 5), bool), **CLIP
      ).sum()
    )(np.full((1, 5), -1.0))
    np.testing.assert_allclose(
      -gradient_BT[0], [0.8, np.exp(-0.1), 1, np.exp(0.1), 1.3], rtol=1e-6
    )

  @parameterized.named_parameters(
    ("rare_token_rose_tenfold", 0.001, 0.01, 1.0, False),
    ("likely_token_fell", 0.9, 0.7, -1.0, True),
    ("likely_token_fell_against_its_advantage", 0.9, 0.7, 1.0, False),
    ("token_rose_far", 0.3, 0.5, 1.0, True),
    ("token_rose_far_against_its_advantage", 0.3, 0.5, -1.0, False),
    ("certain_token", 1.0, 1.0, 1.0, False),
    ("token_became_certain", 0.5, 1.0, 1.0, True),
    ("certain_token_fell", 1.0, 0.5, -1.0, True),
  )
  def test_dppo_stops_where_the_probability_moved(
    self, behavior, policy, advantage, stops
  ):
    for name, loss in NARROW_DPPO.items():
      gradient = _gradient(
        loss,
        np.full((1, 1), math.log(policy)),
        np.full((1, 1), math.log(policy / behavior)),
        np.full((1, 1), advantage),
        np.ones((1, 1), bool),
      )
      expected = 0.0 if stops else -advantage * policy / behavior
      np.testing.assert_allclose(
        gradient, [[expected]], rtol=1e-5, err_msg=name
      )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    x=st.floats(-20, 20, width=32), advantage=st.floats(-3, 3, width=32)
  )
  def test_the_gate_of_sapo_never_turns_or_outweighs_the_gradient(
    self, x, advantage
  ):
    gradient = _gradient(
      policy_gradient.sapo, np.full((1, 1), x), np.full((1, 1), advantage)
    ).item()
    self.assertLessEqual(gradient * advantage, 0)
    # 4 p (1 - p) <= 1, so no more than REINFORCE would give
    self.assertLessEqual(abs(gradient), np.exp(x) * abs(advantage) * 1.0001)


class SettingsTest(parameterized.TestCase):
  def test_a_bound_may_be_an_array_that_changes_on_the_way(self):
    @jax.jit
    def loss(clip):
      x_BT = np.ones((1, 1))
      return policy_gradient.clipped_surrogate(
        x_BT, x_BT, clip_low=clip, clip_high=clip
      )

    np.testing.assert_allclose(loss(0.25), [[-1.25]])


def _gmpo_batch(seed: int):
  """(log-ratio, advantage, mask), NaN off the mask; one advantage per row."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  advantage_B1 = np.array([[1.0], [-2.0], [0.5], [3.0]])
  log_ratio_BT = rng.normal(scale=0.5, size=(B, T))
  return (
    np.where(mask_BT, log_ratio_BT, np.nan),
    np.where(mask_BT, advantage_B1, np.nan),
    mask_BT,
  )


def _mean_gmpo(log_ratio_BT, advantage_BT, mask_BT):
  loss_BT = policy_gradient.gmpo(log_ratio_BT, advantage_BT, mask_BT)
  return reductions.sequence_mean(loss_BT, mask_BT).value()


def _mean_reinforce(log_ratio_BT, advantage_BT, mask_BT):
  loss_BT = policy_gradient.reinforce(log_ratio_BT, advantage_BT)
  return reductions.sequence_mean(loss_BT, mask_BT).value()


class GMPOTest(parameterized.TestCase):
  def test_a_sequence_of_one_token_is_clipped_reinforce(self):
    log_ratio_BT = np.linspace(-1, 1, 12).reshape(12, 1)
    advantage_BT = np.tile(np.array([[1.0], [-1.0]]), (6, 1))
    bounds = dict(clip_low=float(1 - np.exp(-0.4)), clip_high=np.exp(0.4) - 1)
    np.testing.assert_allclose(
      policy_gradient.gmpo(log_ratio_BT, advantage_BT, np.ones((12, 1), bool)),
      policy_gradient.clipped_surrogate(log_ratio_BT, advantage_BT, **bounds),
      rtol=1e-6,
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_on_policy_gradient_is_reinforce(self, seed):
    _, advantage_BT, mask_BT = _gmpo_batch(seed)

    arrays = np.zeros((B, T)), advantage_BT, mask_BT
    found_BT, wanted_BT = (
      np.where(mask_BT, _gradient(loss, *arrays), 0)
      for loss in (_mean_gmpo, _mean_reinforce)
    )
    np.testing.assert_allclose(found_BT, wanted_BT, atol=1e-6)


class NegativeLogLikelihoodTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    self.logprob_BT = -rng.exponential(size=(B, T)).astype(np.float32)

  def test_gradient_is_reinforce_on_policy_with_advantage_one(self):
    gradient_BT = _gradient(
      policy_gradient.negative_log_likelihood, self.logprob_BT
    )
    reinforce_BT = _gradient(
      policy_gradient.reinforce, np.zeros((B, T)), np.ones((B, T))
    )
    np.testing.assert_array_equal(gradient_BT, reinforce_BT)

  def test_its_expectation_under_the_policy_is_the_entropy(self):
    logits_1V = np.random.default_rng(1).normal(size=(1, V))
    probability_1V = np.exp(logits_1V) / np.exp(logits_1V).sum()
    loss_1V = policy_gradient.negative_log_likelihood(np.log(probability_1V))
    np.testing.assert_allclose(
      np.sum(probability_1V * np.asarray(loss_1V)),
      logits.entropy(logits_1V[None]).item(),
      rtol=1e-5,
    )
