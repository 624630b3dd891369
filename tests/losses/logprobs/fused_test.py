"""Tests of `losses.logprobs.fused` against loops and the full logits."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import fused_token_logprob
from tests.losses.logprobs import fused_cases as cases
from tests.losses.logprobs.fused_cases import B, T
from tests.reference import finite_difference
from tests.reference import logprobs as reference

JITTED = jax.jit(
  fused_token_logprob,
  static_argnames=("chunk_size", "vocab_chunk_size", "entropy_gradient"),
)


class FusedTokenLogprobTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("one_tile", 100, 100),
    ("chunks_of_tokens", 2, None),
    ("tiles_that_do_not_fit", 3, 4),
    ("smallest_tiles", 1, 1),
    ("capped", 3, 4, 1.5),
  )
  def test_equals_the_full_logits_in_value_and_gradient(
    self, chunk_size, vocab_chunk_size, cap=0.0
  ):
    inputs = cases.inputs(seed=0)
    chex.assert_trees_all_close(
      cases.measured(
        fused_token_logprob,
        inputs,
        chunk_size=chunk_size,
        vocab_chunk_size=vocab_chunk_size,
        logit_cap=cap,
      ),
      cases.measured(cases.plain, inputs, cap=cap),
      atol=1e-5,
    )

  def test_matches_reference_and_finite_differences_to_twelve_digits(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(0, np.float64)
    with jax.enable_x64(True):
      fused = cases.weighted(
        fused_token_logprob, token_BT, mask_BT,
        chunk_size=2, vocab_chunk_size=3,
      )  # fmt: skip
      (value, found), slopes = cases.gradient(fused)(hidden_BTD, output_DV, 0.8)
      plain = cases.weighted(cases.plain, token_BT, mask_BT)
      chex.assert_trees_all_close(
        slopes, cases.gradient(plain)(hidden_BTD, output_DV, 0.8)[1], atol=1e-12
      )
    wanted = reference.fused_token_logprob(
      hidden_BTD, output_DV, token_BT, mask_BT, temperature=0.8
    )
    np.testing.assert_allclose(found, wanted, atol=1e-12)

    def total(*arguments):
      return cases.weighted(reference.fused_token_logprob, token_BT, mask_BT)(
        *arguments
      )[0]

    arguments = [hidden_BTD, output_DV, np.float64(0.8)]
    for i, slope in enumerate(slopes):
      with self.subTest(("hidden", "output", "temperature")[i]):
        wanted = finite_difference.gradient(
          lambda x, i=i: total(*arguments[:i], x, *arguments[i + 1 :]),
          arguments[i],
        )
        np.testing.assert_allclose(slope, wanted, atol=1e-8)

  @pytest.mark.slow
  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    share=st.floats(0, 1),
    chunk_size=st.sampled_from((1, 2, T)),
    vocab_chunk_size=st.sampled_from((None, 3)),
    seed=st.integers(0, 99),
  )
  def test_tiles_change_nothing(
    self, share, chunk_size, vocab_chunk_size, seed
  ):
    hidden_BTD, output_DV, token_BT, _ = cases.inputs(seed)
    mask_BT = np.random.default_rng(seed).random((B, T)) < share
    chex.assert_trees_all_close(
      JITTED(
        hidden_BTD,
        output_DV,
        token_BT,
        mask_BT,
        temperature=0.8,
        chunk_size=chunk_size,
        vocab_chunk_size=vocab_chunk_size,
      ),
      cases.plain(hidden_BTD, output_DV, token_BT, mask_BT, temperature=0.8),
      atol=1e-5,
    )

  def test_no_mask_is_a_mask_of_all(self):
    inputs = *cases.inputs(seed=3)[:3], np.ones((B, T), bool)

    def fused(hidden_BTD, output_DV, token_BT, mask_BT, **options):
      del mask_BT
      return fused_token_logprob(hidden_BTD, output_DV, token_BT, **options)

    chex.assert_trees_all_close(
      cases.measured(fused, inputs, chunk_size=2),
      cases.measured(cases.plain, inputs),
      atol=1e-5,
    )

  def test_reads_nothing_off_the_mask(self):
    inputs = hidden_BTD, _, token_BT, mask_BT = cases.inputs(seed=4)
    wanted = jax.device_get(
      cases.measured(fused_token_logprob, inputs, chunk_size=2)
    )
    hidden_BTD[~mask_BT] = np.nan
    token_BT[~mask_BT] = 10**6
    found = jax.device_get(
      cases.measured(fused_token_logprob, inputs, chunk_size=2)
    )
    chex.assert_trees_all_equal(found, wanted)
    (_, values), (hidden_slope_BTD, _, _) = found
    for off_mask in (
      *(x[~mask_BT] for x in values),
      hidden_slope_BTD[~mask_BT],
    ):
      np.testing.assert_array_equal(off_mask, 0)

  def test_nan_on_the_mask_stays_nan(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=5)
    mask_BT[1, 3] = True
    hidden_BTD[1, 3] = np.nan
    found = JITTED(
      hidden_BTD, output_DV, token_BT, mask_BT, chunk_size=2, vocab_chunk_size=3
    )
    for x_BT in map(np.asarray, found):
      self.assertTrue(np.isnan(x_BT[1, 3]))
      self.assertEqual(np.isnan(x_BT).sum(), 1)

  @parameterized.parameters((0, T), (B, 0), (B, T))
  def test_empty_mask_gives_zeros(self, num_rows, num_tokens):
    hidden_BTD, output_DV, token_BT, _ = cases.inputs(seed=6)
    here = slice(num_rows), slice(num_tokens)
    empty_BT = np.zeros((num_rows, num_tokens), bool)
    everything = cases.measured(
      fused_token_logprob,
      (hidden_BTD[here], output_DV, token_BT[here], empty_BT),
      chunk_size=2,
    )
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), everything)

  def test_entropy_passes_no_gradient_unless_asked(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=7)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def slopes(part, entropy_gradient, *arguments):
      def total(hidden_BTD, output_DV, temperature):
        return fused_token_logprob(
          hidden_BTD,
          output_DV,
          token_BT,
          mask_BT,
          temperature=temperature,
          chunk_size=4,
          entropy_gradient=entropy_gradient,
        )[part].sum()

      return jax.grad(total, argnums=(0, 1, 2))(*arguments)

    arguments = (hidden_BTD, output_DV, 0.8)
    for slope in slopes(1, False, *arguments):
      np.testing.assert_array_equal(slope, 0)
    for slope in slopes(1, True, *arguments):
      self.assertGreater(np.abs(slope).max(), 1e-3)
    chex.assert_trees_all_close(
      slopes(0, False, *arguments), slopes(0, True, *arguments), rtol=1e-6
    )

  @pytest.mark.slow
  def test_is_mapped_over_another_axis(self):
    hidden_BTD, output_DV, token_BT, mask_BT = cases.inputs(seed=8)
    mask_BT[0] = False

    def of_row(hidden_TD, token_T, mask_T):
      def total(output_DV):
        logprob, entropy = fused_token_logprob(
          hidden_TD[None], output_DV, token_T[None], mask_T[None], chunk_size=2
        )
        return logprob.sum() + entropy.sum()

      return jax.value_and_grad(total)(output_DV)

    rows = (hidden_BTD, token_BT, mask_BT)
    chex.assert_trees_all_close(
      jax.jit(jax.vmap(of_row))(*rows),
      jax.tree.map(
        lambda *each: jnp.stack(each),
        *(jax.jit(of_row)(*row) for row in zip(*rows, strict=True)),
      ),
      atol=1e-6,
    )
