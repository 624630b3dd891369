"""Log-probabilities of the trained tokens only: what the others cost is saved.

In agents' conversations most tokens are observations, which no loss reads. Here
the trained tokens of each row are moved to its front, and the logits of a chunk
of the row are computed only if any row has a trained token in it. So the output
layer costs as much as the tokens that are trained on, whatever their places.

Axes: B rows, T tokens, C tokens of a chunk, D width, V vocabulary.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.logprobs import entropy, token_logprob


def trained_token_logprob(
  hidden_BTD: jax.Array,
  output_DV: jax.Array,
  token_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  temperature: float | jax.Array = 1.0,
  chunk_size: int,
  entropy_gradient: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """`chunked_token_logprob` on the mask, and 0 off it.

  Logits exist for `chunk_size` tokens of every row at a time and are computed
  again in the backward pass. Rows may be sharded; nothing moves between them.

  Args:
    hidden_BTD: entry t predicts `token_BT[:, t]`.
    output_DV: the float32 output matrix.
    token_BT: integers in [0, V); any value off the mask.
    mask_BT: bool, the trained tokens.
    temperature: of the sampler, positive.
    chunk_size: tokens.
    entropy_gradient: whether the entropy passes a gradient on. A metric needs
      none, and the backward pass is a third cheaper without.

  Returns:
    (logprob_BT, entropy_BT), float32.
  """
  chex.assert_rank([hidden_BTD, output_DV, token_BT], [3, 2, 2])
  chex.assert_equal_shape_prefix([hidden_BTD, token_BT, mask_BT], 2)
  chex.assert_type(mask_BT, bool)
  num_rows, num_tokens = token_BT.shape
  num_chunks = -(-num_tokens // chunk_size)
  order_BT = jnp.argsort(~mask_BT, axis=1, stable=True)

  def chunks(x: jax.Array) -> jax.Array:
    index = order_BT.reshape(order_BT.shape + (1,) * (x.ndim - 2))
    x = jnp.take_along_axis(x, index, axis=1)
    padding = [(0, 0), (0, num_chunks * chunk_size - num_tokens)]
    x = jnp.pad(x, padding + [(0, 0)] * (x.ndim - 2))
    x = x.reshape(num_rows, num_chunks, chunk_size, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  def compute(hidden_BCD: jax.Array, token_BC: jax.Array, mask_BC: jax.Array):
    logits_BCV = jnp.einsum(
      "bcd,dv->bcv",
      hidden_BCD,
      output_DV.astype(hidden_BCD.dtype),
      preferred_element_type=jnp.float32,
    )
    logprob_BC = token_logprob(logits_BCV, token_BC, temperature)
    if not entropy_gradient:
      logits_BCV = jax.lax.stop_gradient(logits_BCV)
    return (
      jnp.where(mask_BC, logprob_BC, 0),
      jnp.where(mask_BC, entropy(logits_BCV, temperature), 0),
    )

  def skip(hidden_BCD: jax.Array, token_BC: jax.Array, mask_BC: jax.Array):
    zeros_BC = jnp.zeros(token_BC.shape, jnp.float32)
    return zeros_BC, zeros_BC

  # Around the choice, not in it: else every chunk would keep output_DV.
  @jax.checkpoint
  def one_chunk(chunk):
    return jax.lax.cond(jnp.any(chunk[2]), compute, skip, *chunk)

  # What stands off the mask is not read, be it NaN.
  hidden_BTD = jnp.where(mask_BT[..., None], hidden_BTD, 0)
  token_BT = jnp.where(mask_BT, token_BT, 0)
  found = jax.lax.map(
    one_chunk, (chunks(hidden_BTD), chunks(token_BT), chunks(mask_BT))
  )
  place_BT = jnp.argsort(order_BT, axis=1)

  def back(x_XBC: jax.Array) -> jax.Array:
    x_BT = jnp.moveaxis(x_XBC, 0, 1).reshape(num_rows, -1)
    return jnp.take_along_axis(x_BT, place_BT, axis=1)

  logprob_XBC, entropy_XBC = found
  return back(logprob_XBC), back(entropy_XBC)
