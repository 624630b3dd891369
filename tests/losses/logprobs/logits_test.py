"""Tests of `losses.logprobs.logits` against loops, formulas and limits."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad
from tests.reference import logprobs as reference

logits = functions_of(losses.logprobs.logits)
B, T, V = 2, 5, 7


def _inputs(seed: int, *, barred: bool = False):
  """Logits and tokens; barred: some entries other than tokens are -inf."""
  rng = np.random.default_rng(seed)
  logits_BTV = rng.normal(scale=2, size=(B, T, V)).astype(np.float32)
  token_BT = rng.integers(V, size=(B, T))
  if barred:
    bar_BTV = rng.random((B, T, V)) < 0.4
    np.put_along_axis(bar_BTV, token_BT[..., None], False, axis=-1)
    assert bar_BTV.any()
    logits_BTV[bar_BTV] = -np.inf
  return logits_BTV, token_BT


class TokenLogprobTest(parameterized.TestCase):
  def test_barred_entries_share_no_probability(self):
    logits_BTV, token_BT = _inputs(seed=1, barred=True)

    def total(logits_BTV):
      return logits.token_logprob(logits_BTV, token_BT, 0.8).sum()

    np.testing.assert_allclose(
      total(logits_BTV),
      reference.token_logprob(logits_BTV, token_BT, 0.8).sum(),
      rtol=1e-5,
    )
    gradient_BTV = np.asarray(grad(total)(logits_BTV))
    self.assertTrue(np.isfinite(gradient_BTV).all())
    np.testing.assert_array_equal(gradient_BTV[np.isneginf(logits_BTV)], 0)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(shift=st.floats(-80, 80, width=32), seed=st.integers(0, 99))
  def test_only_differences_of_logits_matter(self, shift, seed):
    logits_BTV, token_BT = _inputs(seed)
    np.testing.assert_allclose(
      logits.token_logprob(logits_BTV + shift, token_BT),
      logits.token_logprob(logits_BTV, token_BT),
      atol=1e-4,
    )

  def test_large_logits_lose_no_digits(self):
    logits_BTV, token_BT = _inputs(seed=4)
    far_BTV = logits_BTV + np.float32(1000)
    np.testing.assert_allclose(
      logits.token_logprob(far_BTV, token_BT),
      reference.token_logprob(far_BTV, token_BT, 1.0),
      rtol=1e-5,
    )
    logprob_BT = logits.token_logprob(1e4 * logits_BTV, token_BT)
    self.assertTrue(np.isfinite(logprob_BT).all())

  def test_computes_in_float32(self):
    logits_BTV, token_BT = _inputs(seed=5)
    low_BTV = logits_BTV.astype(jnp.bfloat16)
    logprob_BT = logits.token_logprob(low_BTV, token_BT, 0.8)
    self.assertEqual(logprob_BT.dtype, jnp.float32)
    np.testing.assert_allclose(
      logprob_BT,
      reference.token_logprob(np.asarray(low_BTV, np.float64), token_BT, 0.8),
      rtol=1e-5,
    )

  def test_keeps_twelve_digits_of_float64(self):
    logits_BTV, token_BT = _inputs(seed=8, barred=True)
    with jax.enable_x64(True):
      logits_BTV = logits_BTV.astype(np.float64)
      found = (
        logits.token_logprob(logits_BTV, token_BT, 0.8),
        logits.entropy(logits_BTV, 0.8),
      )
    wanted = (
      reference.token_logprob(logits_BTV, token_BT, 0.8),
      reference.entropy(logits_BTV, 0.8),
    )
    np.testing.assert_allclose(found, wanted, atol=1e-12)


class EntropyTest(parameterized.TestCase):
  def test_barred_entries_get_no_gradient(self):
    logits_BTV, _ = _inputs(seed=2, barred=True)
    gradient_BTV = np.asarray(
      grad(lambda z: logits.entropy(z).sum())(logits_BTV)
    )
    self.assertTrue(np.isfinite(gradient_BTV).all())
    np.testing.assert_array_equal(gradient_BTV[np.isneginf(logits_BTV)], 0)

  def test_is_the_expected_negative_logprob(self):
    logits_BTV, _ = _inputs(seed=3)
    expected_BT = np.zeros((B, T))
    for token in range(V):
      token_BT = np.full((B, T), token)
      logprob_BT = np.asarray(logits.token_logprob(logits_BTV, token_BT, 0.8))
      expected_BT -= np.exp(logprob_BT) * logprob_BT
    np.testing.assert_allclose(
      logits.entropy(logits_BTV, 0.8), expected_BT, rtol=1e-5, atol=1e-6
    )

  def test_lies_between_certain_and_uniform(self):
    uniform_BT = logits.entropy(np.full((B, T, V), 3.0))
    np.testing.assert_allclose(uniform_BT, np.log(V), rtol=1e-6)
    certain_BT = logits.entropy(
      100.0 * np.broadcast_to(np.arange(V) == 1, (B, T, V))
    )
    np.testing.assert_allclose(certain_BT, 0, atol=1e-6)
