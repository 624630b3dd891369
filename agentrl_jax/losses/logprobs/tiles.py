"""The arithmetic of `fused_token_logprob`: tiles of logits and their gradient.

A tile is C tokens of every row by W vocabulary entries. Its logits are computed
and dropped, once in the forward and once in the backward pass; a few numbers
per token are kept. All results are about the entries of one device, and are
partial if other devices hold other entries.

Axes: B rows, T tokens, D width, V vocabulary, N tokens in the order of work,
C tokens of a chunk, W entries of a tile. s = z / tau are the scaled logits.
"""

import dataclasses
import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from agentrl_jax.losses.logprobs.allowed_tokens import allowed_entries

_Tree = TypeVar("_Tree")


@dataclasses.dataclass(frozen=True)
class Tiles:
  """Sizes of the tiles, and options that are fixed when compiled."""

  num_tokens: int  # C
  num_entries: int  # W
  skip: bool  # whether to end at the last chunk with a token on the mask
  entropy_gradient: bool
  logit_cap: float  # z is cap tanh(product / cap); 0: the product


class Tokens(NamedTuple):
  """Tokens to compute, those on the mask first."""

  token_BN: jax.Array  # column of the output matrix; may be another device's
  place_BN: jax.Array  # index into T of the state that predicts it
  mask_BN: jax.Array
  row_BN: jax.Array | None  # of the table of masks, where there is one


class Parts(NamedTuple):
  """Partial results of each token over some vocabulary entries.

  The logsumexp is kept in two terms, because the difference of large numbers
  loses digits: logprob = (chosen - largest) - log_total.
  """

  largest_BN: jax.Array  # max_v s_v, a constant
  chosen_BN: jax.Array  # s[token]; 0 if the token is not among the entries
  log_total_BN: jax.Array  # log sum_v exp(s_v - largest)
  entropy_BN: jax.Array  # of softmax(s)


class Masks(NamedTuple):
  """Table of masks, as in `allowed_tokens.AllowedTokens`."""

  mask_MX: jax.Array
  # Vocabulary id of this device's first entry; None if it has all entries.
  first: jax.Array | None


class _Chunk(NamedTuple):
  """Inputs of the tiles of a chunk."""

  hidden_BCD: jax.Array  # 0 off the mask, where it may be NaN
  output_DV: jax.Array  # in the dtype of the states
  temperature: jax.Array
  token_BC1: jax.Array
  mask_BC1: jax.Array
  row_BC: jax.Array | None  # of the table of masks
  masks: Masks | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def parts_of_tokens(
  tiles: Tiles,
  hidden_BTD: jax.Array,
  output_DV: jax.Array,
  temperature: jax.Array,
  tokens: Tokens,
  masks: Masks | None,
) -> Parts:
  """Computes the parts of every token on the mask; off it they are undefined.

    d chosen / d s_v = 1[v = token]
    d log_total / d s_v = p_v
    d entropy / d s_v = -p_v (log p_v + entropy)

  with p the softmax over these entries. Everything but the matrix products is
  computed in the dtype of `temperature`.
  """
  output_DV = output_DV.astype(hidden_BTD.dtype)

  def one_chunk(i: jax.Array, results: Parts) -> Parts:
    chunk = _chunk(tiles, i, hidden_BTD, output_DV, temperature, tokens, masks)
    return write(tiles, i, results, _parts_of_chunk(tiles, chunk))

  zeros_BN = jnp.zeros(tokens.token_BN.shape, temperature.dtype)
  nothing = Parts(zeros_BN, zeros_BN, zeros_BN, zeros_BN)
  return jax.lax.fori_loop(
    0, num_chunks(tiles, tokens), one_chunk, vary_like(nothing, hidden_BTD)
  )


def _parts_forward(tiles, *inputs):
  parts = parts_of_tokens(tiles, *inputs)
  return parts, (inputs, parts)


def _parts_backward(tiles, residuals, slope):
  (hidden_BTD, output_DV, temperature, tokens, masks), parts = residuals
  low_output_DV = output_DV.astype(hidden_BTD.dtype)

  def one_chunk(i, sums):
    hidden_BND, slope_DV, temperature_slope = sums
    hidden_BCD, *sums = _slopes_of_chunk(
      tiles,
      _chunk(tiles, i, hidden_BTD, low_output_DV, temperature, tokens, masks),
      read(tiles, i, parts),
      read(tiles, i, slope),
      (slope_DV, temperature_slope),
    )
    return write(tiles, i, hidden_BND, hidden_BCD), *sums

  num_rows, num_tokens, width = hidden_BTD.shape
  nothing = (
    jnp.zeros((*tokens.token_BN.shape, width), hidden_BTD.dtype),
    jnp.zeros(output_DV.shape, temperature.dtype),
    jnp.zeros((), temperature.dtype),
  )
  hidden_BND, slope_DV, temperature_slope = jax.lax.fori_loop(
    0, num_chunks(tiles, tokens), one_chunk, vary_like(nothing, hidden_BTD)
  )
  back_BT = inverse(tokens.place_BN, num_tokens)
  return (
    jnp.take_along_axis(hidden_BND, back_BT[:, :, None], axis=1),
    slope_DV.astype(output_DV.dtype),
    temperature_slope,
    None,
    None,
  )


parts_of_tokens.defvjp(_parts_forward, _parts_backward)


def _parts_of_chunk(tiles: Tiles, chunk: _Chunk) -> Parts:
  """Computes the parts of a chunk's tokens, tile by tile.

  The running sums are relative to the largest s so far and are rescaled when a
  larger one comes: online softmax, arXiv:1805.02867.
  """

  def one_tile(j, carry):
    largest_BC, total_BC, moment_BC, chosen_BC = carry
    _, s_BCW, is_token_BCW = _tile(tiles, j, chunk)
    larger_BC = jnp.maximum(largest_BC, jnp.max(s_BCW, axis=-1))
    shifted_BCW = s_BCW - larger_BC[:, :, None]
    weight_BCW = jnp.exp(shifted_BCW)
    # An excluded entry adds 0, and not 0 * -inf.
    moment_BCW = jnp.where(weight_BCW > 0, weight_BCW * shifted_BCW, 0)
    rise_BC = largest_BC - larger_BC
    fade_BC = jnp.exp(rise_BC)
    return (
      larger_BC,
      fade_BC * total_BC + jnp.sum(weight_BCW, axis=-1),
      fade_BC * (moment_BC + rise_BC * total_BC) + jnp.sum(moment_BCW, axis=-1),
      chosen_BC + jnp.sum(s_BCW, axis=-1, where=is_token_BCW),
    )

  wide = chunk.temperature.dtype
  zeros_BC = jnp.zeros(chunk.hidden_BCD.shape[:2], wide)
  # Not -inf: the first difference from it would be NaN.
  lowest_BC = zeros_BC + jnp.finfo(wide).min / 2
  nothing = (lowest_BC, zeros_BC, zeros_BC, zeros_BC)
  largest_BC, total_BC, moment_BC, chosen_BC = jax.lax.fori_loop(
    0,
    num_tiles(tiles, chunk.output_DV),
    one_tile,
    vary_like(nothing, chunk.hidden_BCD),
  )
  total_BC = jnp.maximum(total_BC, 1)  # less only if every entry is excluded
  log_total_BC = jnp.log(total_BC)
  entropy_BC = log_total_BC - moment_BC / total_BC
  return Parts(largest_BC, chosen_BC, log_total_BC, entropy_BC)


def _slopes_of_chunk(
  tiles: Tiles, chunk: _Chunk, parts: Parts, slope: Parts, sums
):
  """Computes the gradient of a chunk's states; adds to the other two sums.

  Matrix products take the gradient of the logits in the dtype of the states.
  """
  wide = chunk.temperature.dtype
  product = functools.partial(jnp.einsum, preferred_element_type=wide)
  parts, slope = jax.tree.map(lambda x_BC: x_BC[:, :, None], (parts, slope))

  def one_tile(j, sums):
    slope_BCD, slope_DV, temperature_slope = sums
    output_DW, s_BCW, is_token_BCW = _tile(tiles, j, chunk)
    logp_BCW = (s_BCW - parts.largest_BN) - parts.log_total_BN
    p_BCW = jnp.exp(logp_BCW)
    s_slope_BCW = p_BCW * slope.log_total_BN
    if chunk.masks is not None:  # the token itself may be excluded
      is_token_BCW &= ~jnp.isneginf(s_BCW)
    s_slope_BCW += jnp.where(is_token_BCW, slope.chosen_BN, 0)
    if tiles.entropy_gradient:
      surprise_BCW = jnp.where(p_BCW > 0, logp_BCW + parts.entropy_BN, 0)
      s_slope_BCW -= slope.entropy_BN * p_BCW * surprise_BCW
    s_slope_BCW = jnp.where(chunk.mask_BC1, s_slope_BCW, 0)
    z_slope_BCW = s_slope_BCW / chunk.temperature
    if tiles.logit_cap:
      share_BCW = s_BCW * chunk.temperature / tiles.logit_cap
      # Off the allowed entries, where s = -inf, the slope is 0 already.
      share_BCW = jnp.where(s_slope_BCW != 0, share_BCW, 0)
      z_slope_BCW *= 1 - share_BCW * share_BCW
    z_slope_BCW = z_slope_BCW.astype(chunk.hidden_BCD.dtype)
    slope_BCD += product("bcw,dw->bcd", z_slope_BCW, output_DW)
    slope_DW = product("bcd,bcw->dw", chunk.hidden_BCD, z_slope_BCW)
    # Neither an excluded entry, with s = -inf, nor a masked token counts.
    moment_BCW = jnp.where(s_slope_BCW != 0, s_slope_BCW * s_BCW, 0)
    temperature_slope -= jnp.sum(moment_BCW) / chunk.temperature
    return (
      slope_BCD,
      add_columns(tiles, j, slope_DV, slope_DW),
      temperature_slope,
    )

  nothing_BCD = jnp.zeros(chunk.hidden_BCD.shape, wide)
  return jax.lax.fori_loop(
    0,
    num_tiles(tiles, chunk.output_DV),
    one_tile,
    (vary_like(nothing_BCD, chunk.hidden_BCD), *sums),
  )


def _tile(tiles: Tiles, j: jax.Array, chunk: _Chunk):
  """Returns a tile's columns, its s, and a one-hot mask of the tokens."""
  output_DW, entry_W, is_new_W = columns(tiles, j, chunk.output_DV)
  z_BCW = jnp.einsum(
    "bcd,dw->bcw",
    chunk.hidden_BCD,
    output_DW,
    preferred_element_type=chunk.temperature.dtype,
  )
  if tiles.logit_cap:
    z_BCW = tiles.logit_cap * jnp.tanh(z_BCW / tiles.logit_cap)
  is_new_11W = is_new_W[None, None, :]
  s_BCW = jnp.where(is_new_11W, z_BCW / chunk.temperature, -jnp.inf)
  if chunk.masks is not None:
    s_BCW = jnp.where(_allowed(tiles, j, chunk), s_BCW, -jnp.inf)
  is_token_BCW = entry_W[None, None, :] == chunk.token_BC1
  return output_DW, s_BCW, is_token_BCW & is_new_11W


def _allowed(tiles: Tiles, j: jax.Array, chunk: _Chunk) -> jax.Array:
  """Returns the allowed entries of a tile at each token, bool [B, C, W]."""
  first: int | jax.Array = 0
  if tiles.num_entries < chunk.output_DV.shape[1]:
    first = first_entry(tiles, j, chunk.output_DV)
  if chunk.masks.first is not None:
    first += chunk.masks.first
  return allowed_entries(
    chunk.row_BC, chunk.masks.mask_MX, first, tiles.num_entries
  )


def _chunk(
  tiles: Tiles,
  i: jax.Array,
  hidden_BTD: jax.Array,
  output_DV: jax.Array,
  temperature: jax.Array,
  tokens: Tokens,
  masks: Masks | None,
) -> _Chunk:
  tokens = read(tiles, i, tokens)
  token_BC1, place_BC1, mask_BC1 = (
    x_BC[:, :, None]
    for x_BC in (tokens.token_BN, tokens.place_BN, tokens.mask_BN)
  )
  hidden_BCD = jnp.take_along_axis(hidden_BTD, place_BC1, axis=1, mode="clip")
  hidden_BCD = jnp.where(mask_BC1, hidden_BCD, 0)
  return _Chunk(
    hidden_BCD,
    output_DV,
    temperature,
    token_BC1,
    mask_BC1,
    tokens.row_BN,
    masks,
  )


def inverse(place_BN: jax.Array, size: int) -> jax.Array:
  """Inverts the order: returns the n of each of `size` places, [B, size].

  Every place occurs once; places out of range are dropped.
  """

  def of_row(place_N: jax.Array) -> jax.Array:
    n_N = jnp.arange(len(place_N), dtype=place_N.dtype)
    return jnp.zeros(size, place_N.dtype).at[place_N].set(n_N, mode="drop")

  return jax.vmap(of_row)(place_BN)


def num_chunks(tiles: Tiles, tokens: Tokens) -> int | jax.Array:
  """Counts the chunks, up to the last one with a token on the mask.

  A single chunk is always computed: without a loop the compiler sees that both
  passes compute the same logits, and computes them once.
  """
  most = tokens.mask_BN.shape[1] // tiles.num_tokens
  if not tiles.skip or most == 1:
    return most
  longest = jnp.max(jnp.sum(tokens.mask_BN, axis=1, dtype=jnp.int32))
  return -(-longest // tiles.num_tokens)


def read(tiles: Tiles, i: jax.Array, x_BN: _Tree) -> _Tree:
  """Returns chunk i of every array."""
  size = tiles.num_tokens
  return jax.tree.map(
    lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1), x_BN
  )


def write(tiles: Tiles, i: jax.Array, x_BN: _Tree, new_BC: _Tree) -> _Tree:
  """Replaces chunk i of every array."""
  return jax.tree.map(
    lambda x, new: jax.lax.dynamic_update_slice_in_dim(
      x, new.astype(x.dtype), i * tiles.num_tokens, axis=1
    ),
    x_BN,
    new_BC,
  )


def num_tiles(tiles: Tiles, output_DV: jax.Array) -> int:
  """Returns the number of tiles that cover all entries."""
  return -(-output_DV.shape[1] // tiles.num_entries)


def first_entry(tiles: Tiles, j: jax.Array, output_DV: jax.Array) -> jax.Array:
  """Returns a tile's first entry; the last tile overlaps the one before it."""
  return jnp.minimum(
    j * tiles.num_entries, output_DV.shape[1] - tiles.num_entries
  )


def columns(
  tiles: Tiles, j: jax.Array, output_DV: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns a tile's columns, their ids, and a mask without the overlap."""
  # A slice of all columns would move them between devices.
  first = first_entry(tiles, j, output_DV)
  entry_W = first + jnp.arange(tiles.num_entries)
  if tiles.num_entries == output_DV.shape[1]:
    return output_DV, entry_W, entry_W >= 0
  output_DW = jax.lax.dynamic_slice_in_dim(
    output_DV, first, tiles.num_entries, axis=1
  )
  return output_DW, entry_W, entry_W >= j * tiles.num_entries


def add_columns(
  tiles: Tiles, j: jax.Array, x_DV: jax.Array, new_DW: jax.Array
) -> jax.Array:
  """Adds to a tile's columns of an array."""
  if tiles.num_entries == x_DV.shape[1]:
    return x_DV + new_DW
  first = first_entry(tiles, j, x_DV)
  old_DW = jax.lax.dynamic_slice_in_dim(x_DV, first, tiles.num_entries, axis=1)
  return jax.lax.dynamic_update_slice_in_dim(
    x_DV, old_DW + new_DW, first, axis=1
  )


def vary_like(tree: _Tree, *others: jax.Array) -> _Tree:
  """Types values in shard_map as varying over the axes that `others` vary over.

  A loop must return the type of its input: sums start from zeros, which do not
  vary, and add values that do. Outside shard_map nothing changes. The gradient
  of such a value adds up over the devices.
  """
  wanted = frozenset().union(*(_varying(other) for other in others))

  def vary(x: jax.Array) -> jax.Array:
    missing = tuple(wanted - _varying(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x

  return jax.tree.map(vary, tree)


def _varying(x: jax.Array) -> frozenset[str]:
  return jax.typeof(x).manual_axis_type.varying
