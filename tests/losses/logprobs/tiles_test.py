"""Tests of `losses.logprobs.tiles`: memory, skipped chunks and precision."""

from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.losses import fused_token_logprob
from agentrl_jax.losses.logprobs import tiles as fused_tiles
from tests.losses.compiled import compiled
from tests.losses.logprobs import fused_cases as cases
from tests.losses.logprobs.fused_cases import B, D, T, V
from tests.reference import logprobs as reference


class CostTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"chunk_size": 1},), ({"chunk_size": 100, "vocab_chunk_size": 1},)
  )
  def test_never_holds_the_logits(self, tiles):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=0)

    def largest(total):
      program = jax.make_jaxpr(cases.gradient(total))(
        hidden_BTD, output_DV, 1.0
      )
      return max(_sizes(program.jaxpr))

    fused = cases.weighted(fused_token_logprob, token_BT, mask_BT, **tiles)
    plain = cases.weighted(cases.plain, token_BT, mask_BT)
    self.assertGreaterEqual(largest(plain), B * T * V)
    self.assertLess(largest(fused), B * T * V)

  @parameterized.parameters((0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (None, 3))
  @pytest.mark.slow
  def test_computes_no_chunk_too_many(self, num_trained, num_chunks):
    hidden_BTD, output_DV, token_BT, _ = cases.inputs(seed=1)
    mask_BT = np.zeros((B, T), bool)
    # The last tokens of one row; the other has one.
    mask_BT[0, T - (num_trained or 0) :] = True
    mask_BT[1, 0] = bool(num_trained)
    seen = []

    def counted(function):
      def count(*arguments):
        jax.debug.callback(lambda: seen.append(function.__name__))
        return function(*arguments)

      return count

    forward, backward = "_parts_of_chunk", "_slopes_of_chunk"
    with mock.patch.multiple(
      fused_tiles,
      **{
        name: counted(getattr(fused_tiles, name))
        for name in (forward, backward)
      },
    ):
      jax.block_until_ready(
        jax.grad(
          lambda h: fused_token_logprob(
            h,
            output_DV,
            token_BT,
            None if num_trained is None else mask_BT,
            chunk_size=2,
          )[0].sum()
        )(hidden_BTD)
      )
      jax.effects_barrier()
    self.assertEqual(seen.count(forward), num_chunks)
    self.assertEqual(seen.count(backward), num_chunks)


class PrecisionTest(parameterized.TestCase):
  def test_bfloat16_states_give_float32_logits(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=5)
    hidden_BTD = hidden_BTD.astype(jnp.bfloat16)
    output_DV = output_DV.astype(jnp.bfloat16).astype(np.float32)
    (_, found), slopes = cases.measured(
      fused_token_logprob,
      (hidden_BTD, output_DV, token_BT, mask_BT),
      chunk_size=2,
    )
    self.assertEqual(found[0].dtype, jnp.float32)
    self.assertEqual(slopes[0].dtype, jnp.bfloat16)
    self.assertEqual(slopes[1].dtype, jnp.float32)
    exact = np.asarray(hidden_BTD, np.float64)
    np.testing.assert_allclose(
      found,
      reference.fused_token_logprob(
        exact, output_DV, token_BT, mask_BT, temperature=0.8
      ),
      rtol=1e-5,
      atol=1e-6,
    )
    # Only the slopes of the logits are rounded, to 8 bits, before the products.
    wanted = cases.measured(
      cases.plain, (np.float32(exact), output_DV, token_BT, mask_BT)
    )[1]
    for slope, exact_slope in zip(slopes, wanted, strict=True):
      np.testing.assert_allclose(
        np.float32(slope), exact_slope, atol=2**-7 * np.abs(exact_slope).max()
      )

  @parameterized.product(
    states=(jnp.float32, jnp.bfloat16), output=(jnp.float32, jnp.bfloat16)
  )
  def test_gradients_come_in_the_dtype_of_what_they_belong_to(
    self, states, output
  ):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=5)
    arguments = hidden_BTD.astype(states), output_DV.astype(output)

    def total(hidden_BTD, output_DV):
      return fused_token_logprob(
        hidden_BTD, output_DV, token_BT, mask_BT, chunk_size=2
      )[0].sum()

    slopes = jax.eval_shape(jax.grad(total, argnums=(0, 1)), *arguments)
    self.assertEqual([x.dtype for x in slopes], [states, output])

  @pytest.mark.slow
  def test_gradient_of_the_output_adds_up_in_float32(self):
    # 512 equal contributions: a sum in bfloat16 stops growing at 256 of them.
    num_tokens = 512
    hidden_BTD = jnp.ones((1, num_tokens, D), jnp.bfloat16)
    token_BT = jnp.zeros((1, num_tokens), int)

    def total(output_DV):
      return fused_token_logprob(hidden_BTD, output_DV, token_BT, chunk_size=1)[
        0
      ].sum()

    gradient_DV = jax.grad(total)(jnp.zeros((D, V)))
    self.assertEqual(gradient_DV.dtype, jnp.float32)
    expected_V = num_tokens * (np.eye(V)[0] - 1 / V)
    np.testing.assert_allclose(
      gradient_DV, np.broadcast_to(expected_V, (D, V)), rtol=1e-2
    )

  def test_large_logits_lose_no_digits(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=6)
    # The first coordinate adds 1024 to every logit: 2048 / 2.
    hidden_BTD[..., 0], output_DV[0] = 2048, 0.5
    output_DV[1:] = np.round(output_DV[1:] * 16) / 16
    hidden_BTD[..., 1:] = np.round(hidden_BTD[..., 1:] * 16) / 16
    np.testing.assert_allclose(
      compiled(fused_token_logprob)(
        hidden_BTD,
        output_DV,
        token_BT,
        mask_BT,
        chunk_size=2,
        vocab_chunk_size=2,
      ),
      reference.fused_token_logprob(hidden_BTD, output_DV, token_BT, mask_BT),
      rtol=2e-6,
      atol=1e-7,
    )

  @parameterized.parameters(None, 2)
  @pytest.mark.slow
  def test_barred_entries_share_no_probability(self, vocab_chunk_size):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=7)
    # Its logit is -inf for every token: the first coordinate is a bias.
    barred = 0
    hidden_BTD[..., 0], output_DV[0, barred] = 1, -np.inf
    token_BT = np.maximum(token_BT, 1)
    total = cases.weighted(
      fused_token_logprob,
      token_BT,
      mask_BT,
      chunk_size=2,
      vocab_chunk_size=vocab_chunk_size,
    )
    (_, found), (_, slope_DV, slope) = cases.gradient(total)(
      hidden_BTD, output_DV, 0.8
    )
    allowed = [v for v in range(V) if v != barred]
    (_, wanted), (_, wanted_DV, wanted_slope) = cases.gradient(
      cases.weighted(cases.plain, token_BT - 1, mask_BT)
    )(hidden_BTD, output_DV[:, allowed], 0.8)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(slope_DV[:, allowed], wanted_DV, atol=1e-5)
    np.testing.assert_allclose(slope, wanted_slope, atol=1e-5)
    np.testing.assert_array_equal(slope_DV[:, barred], 0)


def _sizes(jaxpr):
  """Elements of every array that the program, or a part of it, makes."""
  for equation in jaxpr.eqns:
    yield from (variable.aval.size for variable in equation.outvars)
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _sizes(inner)
