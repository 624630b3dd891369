"""Tests of `losses.policy_gradient`: decoupled PPO, CISPO and SAPO."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import policy_gradient, ratios, reductions
from tests.reference import finite_difference
from tests.reference import policy_gradient as reference

B, T = 3, 7
CLIP = dict(clip_low=0.2, clip_high=0.3)


def _batch(seed: int, scale: float = 0.6):
  """(policy, behavior, proximal, advantage, mask); NaN off the mask."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  behavior_BT = rng.normal(-2, 1, size=(B, T))
  policy_BT, proximal_BT = behavior_BT + rng.normal(scale=scale, size=(2, B, T))
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
  _case("sapo", "sapo", _plain),
  _case("sapo_steep", "sapo", _plain, tau_positive=2.0, tau_negative=3.0),
)


def _objective(loss, batch):
  def value(policy_BT):
    loss_BT = loss((policy_BT, *batch[1:]))
    return reductions.token_mean(loss_BT, batch[-1]).value()

  return value


class VariantsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ALL)
  def test_matches_reference(self, loss, expected):
    batch = _batch(seed=0)
    known = (*(np.nan_to_num(x) for x in batch[:-1]), batch[-1])
    with jax.enable_x64(True):
      loss_BT = self.variant(loss)(batch)
    np.testing.assert_allclose(
      np.where(batch[-1], loss_BT, 0),
      np.where(batch[-1], expected(known), 0),
      atol=1e-13,
    )

  @parameterized.named_parameters(*ALL)
  def test_gradient_matches_finite_differences_and_hides_nan(
    self, loss, expected
  ):
    batch = _batch(seed=1)
    known = (*(np.nan_to_num(x) for x in batch[:-1]), batch[-1])
    if "cispo" in expected.keywords["surrogate"].__name__:
      expected = functools.partial(expected, constant_BT=known[0])

    def total(policy_BT):
      loss_BT = expected((policy_BT, *known[1:]))
      return loss_BT[batch[-1]].mean()

    with jax.enable_x64(True):
      gradient_BT = jax.grad(_objective(loss, batch))(batch[0])
    self.assertGreater(np.abs(gradient_BT).max(), 0.01)
    np.testing.assert_allclose(
      gradient_BT, finite_difference.gradient(total, known[0]), atol=1e-8
    )

  @parameterized.named_parameters(*ALL)
  def test_nothing_trained_costs_nothing(self, loss, _):
    *arrays, mask_BT = _batch(seed=2)
    batch = (*(np.full((B, T), np.nan) for _ in arrays), mask_BT & False)
    value, gradient_BT = jax.value_and_grad(_objective(loss, batch))(batch[0])
    self.assertEqual(value, 0)
    np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)))

  @parameterized.named_parameters(*ALL)
  def test_no_rows_cost_nothing(self, loss, _):
    batch = tuple(x[:0] for x in _batch(seed=2))
    self.assertEqual(_objective(loss, batch)(batch[0]), 0)

  @parameterized.named_parameters(*ALL)
  def test_on_policy_gradient_is_reinforce(self, loss, _):
    policy_BT, _, _, advantage_BT, mask_BT = _batch(seed=3)
    batch = (policy_BT, policy_BT, policy_BT, advantage_BT, mask_BT)
    with jax.enable_x64(True):
      gradient_BT = jax.grad(_objective(loss, batch))(policy_BT)
    np.testing.assert_allclose(
      gradient_BT,
      np.where(mask_BT, -advantage_BT, 0) / mask_BT.sum(),
      atol=1e-15,
    )

  @parameterized.named_parameters(*ALL)
  def test_all_but_the_policy_is_constant(self, loss, _):
    *arrays, mask_BT = (np.nan_to_num(x) for x in _batch(seed=4))
    mask_BT = mask_BT.astype(bool)

    def value(others):
      return loss((arrays[0], *others, mask_BT)).sum()

    for position, gradient_BT in enumerate(jax.grad(value)(arrays[1:])):
      np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)), position)

  @parameterized.named_parameters(*ALL)
  def test_refuses_another_shape(self, loss, _):
    batch = _batch(seed=5)
    with self.assertRaises(AssertionError):
      loss((*batch[:3], batch[3][:1], batch[4]))

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
    log_ratio_BT = jnp.array([[-5.0, -0.1, 0.0, 0.1, 5.0]])
    gradient_BT = jax.grad(
      lambda x: policy_gradient.cispo(
        log_ratio_BT, jnp.ones((1, 5)), x, jnp.ones((1, 5), bool), **CLIP
      ).sum()
    )(jnp.full((1, 5), -1.0))
    np.testing.assert_allclose(
      -gradient_BT[0], [0.8, np.exp(-0.1), 1, np.exp(0.1), 1.3], rtol=1e-6
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    x=st.floats(-20, 20, width=32), advantage=st.floats(-3, 3, width=32)
  )
  def test_the_gate_of_sapo_never_turns_or_outweighs_the_gradient(
    self, x, advantage
  ):
    gradient = jax.grad(
      lambda x: policy_gradient.sapo(x, jnp.full((1, 1), advantage)).sum()
    )(jnp.full((1, 1), x))[0, 0]
    self.assertLessEqual(gradient * advantage, 0)
    # 4 p (1 - p) <= 1, so no more than REINFORCE would give
    self.assertLessEqual(abs(gradient), np.exp(x) * abs(advantage) * 1.0001)


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(clip_low=0.0), "clip_low=0.0 must be above 0 and at most 1"),
    (dict(clip_low=1.2), "clip_low=1.2"),
    (dict(clip_low=float("nan")), "clip_low=nan"),
    (dict(clip_high=-0.1), "clip_high=-0.1 must be positive"),
    (dict(dual_clip=1.0), "dual_clip=1.0 must be above 1"),
    (dict(weight_cap=0.0), "weight_cap=0.0 must be positive"),
  )
  def test_refuses_bounds_that_cannot_be_meant(self, changed, message):
    x_BT = jnp.zeros((1, 1))
    with self.assertRaisesRegex(ValueError, message):
      policy_gradient.decoupled_surrogate(x_BT, x_BT, x_BT, **CLIP | changed)

  @parameterized.parameters("tau_positive", "tau_negative")
  def test_refuses_a_temperature_that_is_not_positive(self, name):
    x_BT = jnp.zeros((1, 1))
    with self.assertRaisesRegex(ValueError, f"{name}=0 must be positive"):
      policy_gradient.sapo(x_BT, x_BT, **{name: 0})

  @parameterized.parameters("clip_low", "clip_high")
  def test_refuses_a_bound_of_cispo_that_is_not_positive(self, name):
    x_BT = jnp.zeros((1, 1))
    with self.assertRaisesRegex(ValueError, f"{name}=0 must be positive"):
      policy_gradient.cispo(x_BT, x_BT, x_BT, x_BT == 0, **CLIP | {name: 0})

  def test_a_bound_may_be_an_array_that_changes_on_the_way(self):
    @jax.jit
    def loss(clip):
      x_BT = jnp.ones((1, 1))
      return policy_gradient.clipped_surrogate(
        x_BT, x_BT, clip_low=clip, clip_high=clip
      )

    np.testing.assert_allclose(loss(0.25), [[-1.25]])


if __name__ == "__main__":
  absltest.main()
