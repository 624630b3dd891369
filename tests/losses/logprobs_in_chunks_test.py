"""Tests of `losses.logprobs` in chunks, against the full logits."""

import functools

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.losses import logprobs
from tests.reference import logprobs as reference

B, T, V, D = 2, 5, 7, 3


class ChunkedTest(chex.TestCase):
  def _inputs(self, seed: int):
    rng = np.random.default_rng(seed)
    hidden_BTD = rng.normal(size=(B, T, D)).astype(np.float32)
    output_DV = rng.normal(size=(D, V)).astype(np.float32)
    return hidden_BTD, output_DV, rng.integers(V, size=(B, T))

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(1, 2, 3, T, T + 1, 100)
  def test_equals_the_full_logits_in_value_and_gradient(self, chunk_size):
    hidden_BTD, output_DV, token_BT = self._inputs(seed=0)
    weight_BT, other_BT = np.random.default_rng(1).normal(size=(2, B, T))

    def weighted(logprob_BT, entropy_BT):
      return jnp.sum(weight_BT * logprob_BT + other_BT * entropy_BT)

    def chunked(hidden_BTD, output_DV):
      outputs = logprobs.chunked_token_logprob(
        hidden_BTD, output_DV, token_BT, temperature=0.8, chunk_size=chunk_size
      )
      return weighted(*outputs), outputs

    def full(hidden_BTD, output_DV):
      logits_BTV = hidden_BTD @ output_DV
      outputs = (
        logprobs.token_logprob(logits_BTV, token_BT, 0.8),
        logprobs.entropy(logits_BTV, 0.8),
      )
      return weighted(*outputs), outputs

    def value_and_gradient(function):
      return jax.value_and_grad(function, argnums=(0, 1), has_aux=True)

    chex.assert_trees_all_close(
      self.variant(value_and_gradient(chunked))(hidden_BTD, output_DV),
      value_and_gradient(full)(hidden_BTD, output_DV),
      atol=1e-5,
    )

  def test_never_holds_the_logits(self):
    hidden_BTD, output_DV, token_BT = self._inputs(seed=2)

    def chunked(hidden_BTD, output_DV):
      logprob_BT, entropy_BT = logprobs.chunked_token_logprob(
        hidden_BTD, output_DV, token_BT, temperature=1.0, chunk_size=1
      )
      return jnp.sum(logprob_BT + entropy_BT)

    def full(hidden_BTD, output_DV):
      return logprobs.token_logprob(hidden_BTD @ output_DV, token_BT).sum()

    def largest(function):
      gradient = jax.grad(function, argnums=(0, 1))
      jaxpr = jax.make_jaxpr(gradient)(hidden_BTD, output_DV)
      return max(_sizes(jaxpr.jaxpr))

    self.assertGreaterEqual(largest(full), B * T * V)
    self.assertLess(largest(chunked), B * T * V)

  @parameterized.parameters((1, 5), (2, 3), (T, 1), (T + 1, 1))
  def test_computes_no_chunk_too_many(self, chunk_size, num_chunks):
    jaxpr = jax.make_jaxpr(
      functools.partial(
        logprobs.chunked_token_logprob, temperature=1.0, chunk_size=chunk_size
      )
    )(*self._inputs(seed=6))
    (loop,) = (e for e in jaxpr.eqns if e.primitive.name == "scan")
    self.assertEqual(loop.params["length"], num_chunks)

  def test_bfloat16_states_give_float32_logits(self):
    hidden_BTD, output_DV, token_BT = self._inputs(seed=5)
    hidden_BTD = jnp.asarray(hidden_BTD, jnp.bfloat16)
    output_DV = jnp.asarray(output_DV, jnp.bfloat16)
    logits_BTV = np.asarray(hidden_BTD, np.float64) @ np.asarray(
      output_DV, np.float64
    )
    logprob_BT, entropy_BT = logprobs.chunked_token_logprob(
      hidden_BTD, output_DV, token_BT, temperature=0.8, chunk_size=2
    )
    np.testing.assert_allclose(
      logprob_BT,
      reference.token_logprob(logits_BTV, token_BT, 0.8),
      rtol=1e-4,
      atol=1e-6,
    )
    np.testing.assert_allclose(
      entropy_BT, reference.entropy(logits_BTV, 0.8), rtol=1e-4, atol=1e-6
    )

  def test_gradient_of_the_output_adds_up_in_float32(self):
    # 512 equal contributions: a sum in bfloat16 stops growing at 256 of them.
    num_tokens = 512
    hidden_BTD = jnp.ones((1, num_tokens, D), jnp.bfloat16)
    output_DV = jnp.zeros((D, V))
    token_BT = jnp.zeros((1, num_tokens), int)

    def total(output_DV):
      return logprobs.chunked_token_logprob(
        hidden_BTD, output_DV, token_BT, temperature=1.0, chunk_size=1
      )[0].sum()

    gradient_DV = jax.grad(total)(output_DV)
    self.assertEqual(gradient_DV.dtype, jnp.float32)
    expected_V = num_tokens * (np.eye(V)[0] - 1 / V)
    np.testing.assert_allclose(
      gradient_DV, np.broadcast_to(expected_V, (D, V)), rtol=1e-2
    )

  def test_no_tokens_give_no_logprobs(self):
    hidden_BTD, output_DV, token_BT = self._inputs(seed=3)
    logprob_BT, entropy_BT = logprobs.chunked_token_logprob(
      hidden_BTD[:, :0], output_DV, token_BT[:, :0], chunk_size=2
    )
    self.assertEqual(logprob_BT.shape, (B, 0))
    self.assertEqual(entropy_BT.shape, (B, 0))

  def test_refuses_empty_chunks(self):
    with self.assertRaisesRegex(ValueError, "chunk_size=0 must be at least 1"):
      logprobs.chunked_token_logprob(*self._inputs(seed=4), chunk_size=0)


def _sizes(jaxpr):
  """Elements of every array that the program, or a part of it, makes."""
  for equation in jaxpr.eqns:
    yield from (variable.aval.size for variable in equation.outvars)
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _sizes(inner)


if __name__ == "__main__":
  absltest.main()
