"""Which tokens could have been drawn, where a grammar left out some.

A sampler that follows a grammar draws from the policy's distribution over the
tokens that the grammar allows at that place. Whoever trains on what was drawn
takes the log-probability under the same distribution, or ratio, divergence and
entropy are about one that nobody sampled from.

Axes: B rows, T tokens, V vocabulary, M masks, X = ceil(V / 32) words of bits.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

BITS = 32  # tokens to a word of bits


class AllowedTokens(NamedTuple):
  """For each token of a batch, what it was drawn from.

  Masks repeat a lot, so they stand in a table: bit b of word x is about token
  32 x + b, and set where that token was allowed.
  """

  row_BT: jax.Array  # int32, the mask's place in the table
  mask_MX: jax.Array  # uint32

  def words(self, vocab_size: int) -> jax.Array:
    """Which words each token could have been, bool [B, T, V].

    For whoever has logits: `token_logprob` and `entropy` of
    `jnp.where(allowed.words(V), logits_BTV, -jnp.inf)` are those of the
    distribution that was drawn from.
    """
    check(self, self.row_BT.shape, vocab_size)
    return allowed_words(self.row_BT, self.mask_MX, 0, vocab_size)


def check(
  allowed: AllowedTokens, shape: tuple[int, ...], vocab_size: int
) -> None:
  """Raises `AssertionError` if it is not about such tokens."""
  chex.assert_shape(allowed.row_BT, shape)
  chex.assert_type(allowed.row_BT, int)
  chex.assert_shape(allowed.mask_MX, (None, -(-vocab_size // BITS)))
  chex.assert_equal(allowed.mask_MX.dtype, jnp.uint32)


def allowed_words(
  row_BT: jax.Array, mask_MX: jax.Array, first: int | jax.Array, size: int
) -> jax.Array:
  """The bits first, first + 1, ... of each token's mask, bool [B, T, size]."""
  if isinstance(first, int) and not first:
    # A plain slice, which compilers split over devices without sending.
    num_mask_words, skipped = -(-size // BITS), None
    mask_MX = mask_MX[:, :num_mask_words]
  else:
    num_mask_words, skipped = -(-(size + BITS - 1) // BITS), first % BITS
    # Bits that nobody asks for, lest the slice begin early at the end.
    padded_MX = jnp.pad(mask_MX, ((0, 0), (0, 2)))
    mask_MX = jax.lax.dynamic_slice_in_dim(
      padded_MX, first // BITS, num_mask_words, axis=1
    )
  bits_BTX = jnp.asarray(mask_MX)[row_BT]
  shift_111L = jnp.arange(BITS, dtype=jnp.uint32)[None, None, None, :]
  bit_BTXL = (bits_BTX[:, :, :, None] >> shift_111L) & 1
  bit_BTV = bit_BTXL.reshape(*row_BT.shape, num_mask_words * BITS).astype(bool)
  if skipped is None:
    return bit_BTV[:, :, :size]
  return jax.lax.dynamic_slice_in_dim(bit_BTV, skipped, size, axis=2)
