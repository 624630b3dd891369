"""Log-probability and entropy from hidden states, without storing logits.

The logits of a long batch are its largest array by far: 18 GiB in float32 for 4
rows of 8192 tokens and 150 000 vocabulary entries. Here they exist for one tile
of tokens and entries at a time, and are computed again for the backward pass.

Axes: B rows, T tokens, D width, V vocabulary, N tokens in the order of work.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require, widen
from agentrl_jax.losses.logprobs import allowed_tokens
from agentrl_jax.losses.logprobs.allowed_tokens import AllowedTokens
from agentrl_jax.losses.logprobs.logits import check_temperature
from agentrl_jax.losses.logprobs.tiles import (
  Masks,
  Parts,
  Tiles,
  Tokens,
  inverse,
  parts_of_tokens,
  vary_like,
)


def fused_token_logprob(
  hidden_BTD: jax.Array,
  output_DV: jax.Array,
  token_BT: jax.Array,
  mask_BT: jax.Array | None = None,
  allowed: AllowedTokens | None = None,
  *,
  temperature: float | jax.Array = 1.0,
  chunk_size: int,
  vocab_chunk_size: int | None = None,
  entropy_gradient: bool = True,
  logit_cap: float = 0.0,
  vocab_axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
  """`token_logprob` and `entropy` of hidden @ output, in the memory of a tile.

    z = cap tanh(hidden @ output / cap),  p = softmax(z / tau)
    logprob = log p[token],  H = -sum_v p_v log p_v
    d z_v = (g (1[v = token] - p_v) - h p_v (log p_v + H)) / tau

  with g and h the incoming gradients of logprob and entropy; z_v = -inf for the
  entries that `allowed` excludes. The backward pass computes z again and keeps
  a logsumexp per token: 4 matrix products instead of 3. The gradients of the
  hidden states, the output matrix and the temperature are exact; there is no
  second derivative.

  Tokens off the mask cost nothing: those on it are moved to the front of their
  row, and the loop ends at the last chunk that has one, unless a row is a
  single chunk. Rows are never mixed. On one device, rows of different lengths
  cost less as a single long row.

  Products are taken in the dtype of `hidden_BTD`, in the backward pass too, and
  accumulated in float32, over chunks as well. Pass the float32 parameter as
  `output_DV`: its gradient has its dtype.

  Under jit over a mesh, rows may be split over devices, and so may the columns
  of `output_DV` if `vocab_chunk_size` is None. Devices with different columns
  exchange sums per token and the gradient of the states. Devices with different
  rows exchange the gradient of the output matrix, once per chunk of tokens, so
  use long chunks. Inside shard_map they exchange it once; `vocab_axis` names
  the mesh axis that splits the vocabulary there.

  Args:
    hidden_BTD: entry t predicts `token_BT[:, t]`.
    output_DV: the output matrix; with `vocab_axis`, this device's columns.
    token_BT: integers in [0, V); any value off the mask. With `vocab_axis`, V
      counts the columns of all devices.
    mask_BT: bool, the tokens to compute; all if None. Off it nothing is read.
    allowed: the allowed entries, of the whole vocabulary; all if None. A token
      that was not allowed has logprob -inf and passes no gradient on.
    temperature: tau, positive: the sampler's, for all tokens alike.
    chunk_size: tokens of every row in a tile.
    vocab_chunk_size: vocabulary entries in a tile; all if None. Narrow tiles of
      many tokens are faster and smaller than wide tiles of few tokens: each
      column of the output matrix's gradient is then written fewer times.
    entropy_gradient: whether the entropy passes a gradient on. A metric needs
      none.
    logit_cap: cap, as of Gemma 4; 0 is none, and z the product.
    vocab_axis: mesh axis of an enclosing shard_map; device k of n has the
      columns [k V / n, (k + 1) V / n).

  Returns:
    (logprob_BT, entropy_BT) in nats, float32 at least; 0 off the mask.
  """
  _check(hidden_BTD, output_DV, token_BT, mask_BT)
  _check_sizes(chunk_size, vocab_chunk_size)
  if allowed is not None:
    parts = 1 if vocab_axis is None else jax.lax.axis_size(vocab_axis)
    allowed_tokens.check(allowed, token_BT.shape, parts * output_DV.shape[1])
  check_temperature(temperature)
  temperature = jnp.asarray(temperature, widen(hidden_BTD[:0]).dtype)
  chex.assert_rank(temperature, 0)
  if not token_BT.size:
    return (jnp.zeros(token_BT.shape, temperature.dtype),) * 2
  num_entries = output_DV.shape[1]
  tiles = Tiles(
    num_tokens=min(chunk_size, token_BT.shape[1]),
    num_entries=min(vocab_chunk_size or num_entries, num_entries),
    skip=mask_BT is not None,
    entropy_gradient=entropy_gradient,
    logit_cap=logit_cap,
  )
  first = None
  if vocab_axis is not None:
    first = jax.lax.axis_index(vocab_axis) * num_entries
    token_BT = token_BT - first
  tokens, back_BT = _order_of_work(token_BT, mask_BT, allowed, tiles.num_tokens)
  masks = allowed and Masks(jnp.asarray(allowed.mask_MX), first)
  inputs = (hidden_BTD, output_DV, temperature, tokens, masks)
  inputs = vary_like(inputs, *jax.tree.leaves(inputs))
  parts = parts_of_tokens(tiles, *inputs)
  if vocab_axis is not None:
    parts = _over_devices(parts, vocab_axis)
  logprob_BN = (parts.chosen_BN - parts.largest_BN) - parts.log_total_BN
  entropy_BN = parts.entropy_BN
  if not entropy_gradient:
    entropy_BN = jax.lax.stop_gradient(entropy_BN)

  def back(x_BN: jax.Array) -> jax.Array:
    x_BN = jnp.where(tokens.mask_BN, x_BN, 0)
    return jnp.take_along_axis(x_BN, back_BT, axis=1)

  return back(logprob_BN), back(entropy_BN)


def _order_of_work(
  token_BT: jax.Array,
  mask_BT: jax.Array | None,
  allowed: AllowedTokens | None,
  chunk_size: int,
) -> tuple[Tokens, jax.Array]:
  """Orders tokens on the mask first, in whole chunks; returns the inverse."""
  num_rows, num_tokens = token_BT.shape
  if mask_BT is None:
    mask_BT = jnp.ones(token_BT.shape, bool)
  # Counted, not sorted: XLA compiles a sort of many tokens slowly.
  kept_BT = jnp.cumsum(mask_BT, axis=1, dtype=jnp.int32)
  left_BT = jnp.cumsum(~mask_BT, axis=1, dtype=jnp.int32)
  back_BT = jnp.where(mask_BT, kept_BT, kept_BT[:, -1:] + left_BT) - 1
  place_BT = inverse(back_BT, num_tokens)
  padding = ((0, 0), (0, -num_tokens % chunk_size))
  # Padding comes after all tokens of a row.
  place_BN = jnp.pad(place_BT, padding, constant_values=num_tokens)

  def moved(x_BT: jax.Array) -> jax.Array:
    return jnp.pad(jnp.take_along_axis(x_BT, place_BT, axis=1), padding)

  row_BN = None if allowed is None else moved(allowed.row_BT)
  tokens = Tokens(moved(token_BT), place_BN, moved(mask_BT), row_BN)
  return tokens, back_BT


def _over_devices(parts: Parts, axis: str) -> Parts:
  """Combines the parts of each device's columns to those of all columns.

  The entropy by its grouping property, with w_k the probability of device k's
  columns: sum_k w_k (H_k - log w_k).
  """
  local_BN = jax.lax.stop_gradient(parts.largest_BN)
  largest_BN = jax.lax.pmax(local_BN, axis)
  log_weight_BN = parts.log_total_BN + (local_BN - largest_BN)
  log_total_BN = jnp.log(jax.lax.psum(jnp.exp(log_weight_BN), axis))
  log_share_BN = log_weight_BN - log_total_BN
  return Parts(
    largest_BN,
    jax.lax.psum(parts.chosen_BN, axis),
    log_total_BN,
    jax.lax.psum(
      jnp.exp(log_share_BN) * (parts.entropy_BN - log_share_BN), axis
    ),
  )


def _check(hidden_BTD, output_DV, token_BT, mask_BT) -> None:
  chex.assert_rank([hidden_BTD, output_DV, token_BT], [3, 2, 2])
  chex.assert_equal_shape_prefix([hidden_BTD, token_BT], 2)
  chex.assert_equal(hidden_BTD.shape[2], output_DV.shape[0])
  if mask_BT is not None:
    chex.assert_equal_shape([token_BT, mask_BT])
    chex.assert_type(mask_BT, bool)


def _check_sizes(chunk_size: int, vocab_chunk_size: int | None) -> None:
  for name, size, unit in (
    ("chunk_size", chunk_size, "tokens of each row"),
    ("vocab_chunk_size", vocab_chunk_size, "vocabulary entries"),
  ):
    require(
      name,
      size,
      f"at least 1: it is the number of {unit} whose logits are in memory at "
      "a time",
      lambda x: x >= 1,
    )
