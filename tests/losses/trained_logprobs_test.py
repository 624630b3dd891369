"""Skipping what is not trained changes nothing on the mask."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.losses import chunked_token_logprob, trained_token_logprob

B, T, D, V = 3, 11, 5, 17


def _inputs(share, seed=0):
  rng = np.random.default_rng(seed)
  hidden_BTD = rng.normal(size=(B, T, D)).astype(np.float32)
  output_DV = rng.normal(size=(D, V)).astype(np.float32)
  token_BT = rng.integers(0, V, (B, T))
  mask_BT = rng.random((B, T)) < share
  return hidden_BTD, output_DV, token_BT, mask_BT


def _total(function, weight_BT, *arrays, **options):
  logprob_BT, entropy_BT = function(*arrays, temperature=0.7, **options)
  return jnp.sum(logprob_BT * weight_BT) + 0.3 * jnp.sum(entropy_BT * weight_BT)


class TrainedTokenLogprobTest(parameterized.TestCase):
  @parameterized.product(share=(0.0, 0.3, 1.0), chunk_size=(1, 4, 50))
  def test_equals_the_full_one(self, share, chunk_size):
    hidden, output, token, mask = _inputs(share)
    weight = np.where(mask, np.random.default_rng(1).random((B, T)), 0)

    def sparse(hidden, output):
      return _total(
        trained_token_logprob,
        weight,
        hidden,
        output,
        token,
        mask,
        chunk_size=chunk_size,
        entropy_gradient=True,
      )

    def full(hidden, output):
      return _total(
        chunked_token_logprob, weight, hidden, output, token, chunk_size=4
      )

    found = jax.jit(jax.value_and_grad(sparse, argnums=(0, 1)))(hidden, output)
    wanted = jax.value_and_grad(full, argnums=(0, 1))(hidden, output)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted
    )

  def test_is_zero_off_the_mask_and_reads_nothing_there(self):
    hidden, output, token, mask = _inputs(0.4)
    hidden[~mask] = np.nan
    token[~mask] = 10**6

    def total(hidden):
      logprob, entropy = trained_token_logprob(
        hidden, output, token, mask, chunk_size=4, entropy_gradient=True
      )
      np.testing.assert_array_equal(logprob[~mask], 0)
      np.testing.assert_array_equal(entropy[~mask], 0)
      return logprob.sum() + entropy.sum()

    value = total(hidden)
    self.assertTrue(np.isfinite(value))
    gradient = jax.grad(
      lambda h: sum(
        x.sum()
        for x in trained_token_logprob(
          h, output, token, mask, chunk_size=4, entropy_gradient=True
        )
      )
    )(hidden)
    self.assertTrue(np.isfinite(gradient).all())
    np.testing.assert_array_equal(gradient[~mask], 0)

  def test_entropy_passes_no_gradient_unless_asked(self):
    hidden, output, token, mask = _inputs(0.6)

    def entropy(hidden, wanted):
      return trained_token_logprob(
        hidden, output, token, mask, chunk_size=4, entropy_gradient=wanted
      )[1].sum()

    self.assertEqual(np.abs(jax.grad(entropy)(hidden, False)).max(), 0)
    self.assertGreater(np.abs(jax.grad(entropy)(hidden, True)).max(), 1e-3)


if __name__ == "__main__":
  absltest.main()
