"""Tokens that a grammar allowed when the sampler drew each token.

A sampler that follows a grammar draws from the policy's distribution over the
allowed tokens. The log-probabilities of a trainer have to be under the same
distribution; otherwise ratio, divergence and entropy are about a distribution
that was not sampled from.

Axes: B rows, T tokens, V vocabulary, M masks, X = ceil(V / 32) words of bits.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

BITS = 32  # tokens per word of bits


class AllowedTokens(NamedTuple):
  """The allowed tokens at each token of a batch.

  Masks repeat often, so they stand in a table: bit b of word x is set if token
  32 x + b was allowed.
  """

  row_BT: jax.Array  # int32, the row of the table with the mask
  mask_MX: jax.Array  # uint32

  def entries(self, vocab_size: int) -> jax.Array:
    """Returns the allowed vocabulary entries at each token, bool [B, T, V].

    `token_logprob` and `entropy` of
    `jnp.where(allowed.entries(V), logits_BTV, -jnp.inf)` are those of the
    distribution that was sampled from.
    """
    check(self, self.row_BT.shape, vocab_size)
    return allowed_entries(self.row_BT, self.mask_MX, 0, vocab_size)


def check(
  allowed: AllowedTokens, shape: tuple[int, ...], vocab_size: int
) -> None:
  """Raises `AssertionError` if shapes or dtypes do not fit the tokens."""
  chex.assert_shape(allowed.row_BT, shape)
  chex.assert_type(allowed.row_BT, int)
  chex.assert_shape(allowed.mask_MX, (None, -(-vocab_size // BITS)))
  chex.assert_equal(allowed.mask_MX.dtype, jnp.uint32)


def allowed_entries(
  row_BT: jax.Array, mask_MX: jax.Array, first: int | jax.Array, size: int
) -> jax.Array:
  """Returns bits first, first + 1, ... of each mask, bool [B, T, size]."""
  if isinstance(first, int) and not first:
    # A plain slice, which the compiler splits over devices without transfers.
    num_words, skipped = -(-size // BITS), None
    mask_MX = mask_MX[:, :num_words]
  else:
    num_words, skipped = -(-(size + BITS - 1) // BITS), first % BITS
    # Padding, so that a slice at the end does not begin too early.
    padded_MX = jnp.pad(mask_MX, ((0, 0), (0, 2)))
    mask_MX = jax.lax.dynamic_slice_in_dim(
      padded_MX, first // BITS, num_words, axis=1
    )
  bits_BTX = jnp.asarray(mask_MX)[row_BT]
  shift_111L = jnp.arange(BITS, dtype=jnp.uint32)[None, None, None, :]
  bit_BTXL = (bits_BTX[:, :, :, None] >> shift_111L) & 1
  bit_BTV = bit_BTXL.reshape(*row_BT.shape, num_words * BITS).astype(bool)
  if skipped is None:
    return bit_BTV[:, :, :size]
  return jax.lax.dynamic_slice_in_dim(bit_BTV, skipped, size, axis=2)
