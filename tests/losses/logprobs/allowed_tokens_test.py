"""Tests of `losses.logprobs.allowed_tokens`, and of tiles with masks."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from agentrl_jax.losses import AllowedTokens, fused_token_logprob
from agentrl_jax.losses.logprobs.allowed_tokens import allowed_entries
from tests.losses.logprobs import fused_cases as cases
from tests.reference import finite_difference
from tests.reference import logprobs as reference

B, T, D, V, M = 2, 5, 3, 70, 4


def inputs(dtype=np.float32):
  """Hidden, output, token, mask; every token is among those allowed to it."""
  rng = np.random.default_rng(0)
  allowed_BTV = draw_allowed(rng)
  token_BT = np.array(
    [[rng.choice(np.flatnonzero(a_V)) for a_V in a_TV] for a_TV in allowed_BTV]
  )
  return (
    rng.normal(size=(B, T, D)).astype(dtype),
    rng.normal(size=(D, V)).astype(dtype),
    token_BT,
    np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]], bool),
  ), allowed_BTV


def draw_allowed(rng):
  """All tokens, a third of them, the last ones, and a single one."""
  table_MV = np.ones((M, V), bool)
  table_MV[1] = rng.random(V) < 0.3
  table_MV[2] = np.arange(V) >= 63
  table_MV[3] = np.arange(V) == 32
  return table_MV[[[0, 1, 2, 3, 1], [3, 2, 1, 0, 2]]]


def packed(allowed_BTV) -> AllowedTokens:
  """Bits by plain arithmetic; masks in another order than they come in."""
  table_MV, row = np.unique(
    allowed_BTV.reshape(-1, V), axis=0, return_inverse=True
  )
  mask_MX = np.zeros((len(table_MV), -(-V // 32)), np.uint32)
  for m, v in zip(*np.nonzero(table_MV), strict=True):
    mask_MX[m, v // 32] += np.uint32(2) ** (v % 32)
  return AllowedTokens(
    row.reshape(allowed_BTV.shape[:2]).astype(np.int32), mask_MX
  )


FIND = jax.jit(allowed_entries, static_argnums=3)


class WordsTest(parameterized.TestCase):
  def test_bits_are_read_in_their_order(self):
    allowed_BTV = inputs()[1]
    found_BTV = jax.jit(lambda allowed: allowed.entries(V))(packed(allowed_BTV))
    np.testing.assert_array_equal(found_BTV, allowed_BTV)

  @parameterized.parameters(0, 1, 5, 31, 32, 33, 63, 64)
  def test_any_part_of_them_is_the_same_part(self, first):
    allowed_BTV = inputs()[1]
    allowed = packed(allowed_BTV)
    for size in (1, 6, V - first):
      np.testing.assert_array_equal(
        FIND(*allowed, first, size), allowed_BTV[:, :, first : first + size]
      )

  @parameterized.parameters(
    ({"row_BT": np.zeros((B, T), np.float32)},),
    ({"mask_MX": np.zeros((M, 2), np.uint32)},),
    ({"mask_MX": np.zeros((M, 3), np.int32)},),
  )
  def test_refuses_masks_of_something_else(self, changes):
    allowed = packed(inputs()[1])._replace(**changes)
    with self.assertRaises(AssertionError):
      allowed.entries(V)


def masked_logits(
  hidden_BTD, output_DV, token_BT, mask_BT, *, temperature, allowed
):
  """Log-probability and entropy from all logits, -inf where barred."""
  logits_BTV = jnp.where(allowed.entries(V), hidden_BTD @ output_DV, -jnp.inf)
  logprob_BT = losses.token_logprob(logits_BTV, token_BT, temperature)
  entropy_BT = losses.entropy(logits_BTV, temperature)
  return jax.tree.map(
    lambda x_BT: jnp.where(mask_BT, x_BT, 0), (logprob_BT, entropy_BT)
  )


class FusedTest(parameterized.TestCase):
  @parameterized.parameters((2, None), (100, 100), (2, 33), (3, 7), (1, 1))
  @pytest.mark.slow
  def test_matches_loops_and_finite_differences(
    self, chunk_size, vocab_chunk_size
  ):
    arrays, allowed_BTV = inputs(np.float64)
    hidden_BTD, output_DV, token_BT, mask_BT = arrays
    arguments = hidden_BTD, output_DV, np.float64(0.8)
    with jax.enable_x64(True):
      total = cases.weighted(
        fused_token_logprob, token_BT, mask_BT, chunk_size=chunk_size,
        vocab_chunk_size=vocab_chunk_size, allowed=packed(allowed_BTV),
      )  # fmt: skip
      (_, found), slopes = cases.gradient(total)(*arguments)
    loops = functools.partial(
      reference.fused_token_logprob, allowed_BTV=allowed_BTV
    )
    np.testing.assert_allclose(
      found, loops(*arrays, temperature=0.8), atol=1e-12
    )
    if (chunk_size, vocab_chunk_size) != (2, 33):
      return  # the gradient of one cut is enough: loops are slow

    def number(*arguments):
      return cases.weighted(loops, token_BT, mask_BT)(*arguments)[0]

    for i, slope in enumerate(slopes):
      with self.subTest(("hidden", "output", "temperature")[i]):
        wanted = finite_difference.gradient(
          lambda x, i=i: number(*arguments[:i], x, *arguments[i + 1 :]),
          arguments[i],
        )
        np.testing.assert_allclose(slope, wanted, atol=1e-8)

  @parameterized.parameters((2, None), (100, 100), (2, 33), (3, 7))
  def test_equals_masked_logits_in_value_and_gradient(
    self, chunk_size, vocab_chunk_size
  ):
    arrays, allowed_BTV = inputs()
    traced = {"allowed": packed(allowed_BTV)}
    found, slopes = cases.measured(
      fused_token_logprob, arrays, traced=traced, chunk_size=chunk_size,
      vocab_chunk_size=vocab_chunk_size,
    )  # fmt: skip
    wanted, wanted_slopes = cases.measured(masked_logits, arrays, traced=traced)
    # The temperature has no gradient through logits of -inf.
    chex.assert_trees_all_close(
      (found, slopes[:2]), (wanted, wanted_slopes[:2]), atol=2e-5
    )

  def test_a_mask_of_everything_changes_no_bit(self):
    arrays, _ = inputs()
    everything = packed(np.ones((B, T, V), bool))
    found, wanted = (
      cases.measured(
        fused_token_logprob, arrays, traced={"allowed": allowed}, chunk_size=2
      )
      for allowed in (everything, None)
    )
    chex.assert_trees_all_equal(found, wanted)

  def test_refuses_masks_of_other_tokens(self):
    arrays, allowed_BTV = inputs()
    allowed = packed(allowed_BTV)
    for wrong in (
      allowed._replace(row_BT=allowed.row_BT[:, 1:]),
      allowed._replace(mask_MX=allowed.mask_MX[:, 1:]),
    ):
      with self.assertRaises(AssertionError):
        fused_token_logprob(*arrays, chunk_size=2, allowed=wrong)

  @pytest.mark.slow
  def test_a_barred_token_has_no_chance_and_no_gradient(self):
    arrays, allowed_BTV = inputs()
    hidden_BTD, output_DV, token_BT, mask_BT = arrays
    mask_BT = np.zeros_like(mask_BT)
    mask_BT[0, 2] = True  # allowed are the last tokens alone
    token_BT[0, 2] = 5
    total = cases.weighted(
      fused_token_logprob, token_BT, mask_BT, chunk_size=2, vocab_chunk_size=16,
      allowed=packed(allowed_BTV),
    )  # fmt: skip
    (_, found), slopes = cases.gradient(total)(hidden_BTD, output_DV, 0.8)
    self.assertEqual(found[0][0, 2], -np.inf)
    for slope in slopes:
      self.assertTrue(np.isfinite(slope).all())
    np.testing.assert_array_equal(slopes[1][:, :63], 0)
    self.assertGreater(np.abs(slopes[1][:, 63:]).max(), 1e-3)
