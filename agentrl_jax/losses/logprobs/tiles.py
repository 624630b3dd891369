"""The arithmetic of `fused_token_logprob`: tiles of logits and their gradient.

A tile is C tokens of every row by W words. Its logits are made, read and
dropped, once forwards and once more backwards; what stays is a few numbers per
token. All of it is about the words of one device and says nothing final about
a token if other devices hold other words.

Axes: B rows, T tokens, D width, V vocabulary, N tokens in the order of work,
C tokens of a chunk, W words of a chunk. s = z / tau are the scaled logits.
"""

import dataclasses
import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from agentrl_jax.losses.logprobs.allowed_tokens import allowed_words

_Tree = TypeVar("_Tree")


@dataclasses.dataclass(frozen=True)
class Tiles:
  """How the work is cut: all that is known before it starts."""

  num_tokens: int  # C
  num_entries: int  # W
  skip: bool  # whether to end at the last chunk with a token on the mask
  entropy_gradient: bool


class Tokens(NamedTuple):
  """The work, tokens on the mask first."""

  token_BN: jax.Array  # word of the output matrix, or none of them
  place_BN: jax.Array  # index into T of the state that predicts it
  mask_BN: jax.Array
  row_BN: jax.Array | None  # of the table of masks, where there is one


class Parts(NamedTuple):
  """What some of the words say about each token.

  Two halves of a logsumexp, because the difference of large numbers loses
  digits: logprob = (chosen - largest) - log_total.
  """

  largest_BN: jax.Array  # max_v s_v, a constant
  chosen_BN: jax.Array  # s[token]; 0 if the token is not among them
  log_total_BN: jax.Array  # log sum_v exp(s_v - largest)
  entropy_BN: jax.Array  # of softmax(s)


class Masks(NamedTuple):
  """What is allowed, as in `allowed_tokens.AllowedTokens`."""

  mask_MX: jax.Array
  # The vocabulary's id of the first word here; None: all words are here.
  first: jax.Array | None


class _Chunk(NamedTuple):
  """What the tiles of a chunk are made of."""

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
  """Parts of every token on the mask; off it they mean nothing.

    d chosen / d s_v = 1[v = token]
    d log_total / d s_v = p_v
    d entropy / d s_v = -p_v (log p_v + entropy)

  with p the softmax over these words. All but the products is computed in the
  dtype of `temperature`.
  """
  output_DV = output_DV.astype(hidden_BTD.dtype)

  def one_chunk(i: jax.Array, found: Parts) -> Parts:
    chunk = _chunk(tiles, i, hidden_BTD, output_DV, temperature, tokens, masks)
    return write(tiles, i, found, _parts_of_chunk(tiles, chunk))

  zeros_BN = jnp.zeros(tokens.token_BN.shape, temperature.dtype)
  nothing = Parts(zeros_BN, zeros_BN, zeros_BN, zeros_BN)
  return jax.lax.fori_loop(
    0,
    num_chunks(tiles, tokens),
    one_chunk,
    vary_like(nothing, hidden_BTD),
  )


def _parts_forward(tiles, *inputs):
  found = parts_of_tokens(tiles, *inputs)
  return found, (inputs, found)


def _parts_backward(tiles, residuals, slope):
  (hidden_BTD, output_DV, temperature, tokens, masks), found = residuals
  low_output_DV = output_DV.astype(hidden_BTD.dtype)

  def one_chunk(i, sums):
    hidden_BND, slope_DV, temperature_slope = sums
    hidden_BCD, *sums = _slopes_of_chunk(
      tiles,
      _chunk(tiles, i, hidden_BTD, low_output_DV, temperature, tokens, masks),
      read(tiles, i, found),
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
    0,
    num_chunks(tiles, tokens),
    one_chunk,
    vary_like(nothing, hidden_BTD),
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
  """Parts of a chunk's tokens, from tiles taken one after the other.

  The running sums are relative to the largest s so far and fade when a larger
  one comes: online softmax, arXiv:1805.02867.
  """

  def one_tile(j, carry):
    largest_BC, total_BC, moment_BC, chosen_BC = carry
    _, s_BCW, is_token_BCW = _tile(tiles, j, chunk)
    larger_BC = jnp.maximum(largest_BC, jnp.max(s_BCW, axis=-1))
    shifted_BCW = s_BCW - larger_BC[:, :, None]
    weight_BCW = jnp.exp(shifted_BCW)
    # A barred word adds nothing, and not 0 * -inf.
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
  # Not -inf: what comes first would rise from it by a NaN.
  lowest_BC = zeros_BC + jnp.finfo(wide).min / 2
  nothing = (lowest_BC, zeros_BC, zeros_BC, zeros_BC)
  largest_BC, total_BC, moment_BC, chosen_BC = jax.lax.fori_loop(
    0,
    num_tiles(tiles, chunk.output_DV),
    one_tile,
    vary_like(nothing, chunk.hidden_BCD),
  )
  total_BC = jnp.maximum(total_BC, 1)  # less only if every word is barred
  log_total_BC = jnp.log(total_BC)
  entropy_BC = log_total_BC - moment_BC / total_BC
  return Parts(largest_BC, chosen_BC, log_total_BC, entropy_BC)


def _slopes_of_chunk(
  tiles: Tiles, chunk: _Chunk, found: Parts, slope: Parts, sums
):
  """Gradient of a chunk's states, and sums over chunks of the other two.

  Products take the slopes of the logits in the dtype of the states.
  """
  wide = chunk.temperature.dtype
  product = functools.partial(jnp.einsum, preferred_element_type=wide)
  found, slope = jax.tree.map(lambda x_BC: x_BC[:, :, None], (found, slope))

  def one_tile(j, sums):
    slope_BCD, slope_DV, temperature_slope = sums
    words_DW, s_BCW, is_token_BCW = _tile(tiles, j, chunk)
    logp_BCW = (s_BCW - found.largest_BN) - found.log_total_BN
    p_BCW = jnp.exp(logp_BCW)
    s_slope_BCW = p_BCW * slope.log_total_BN
    if chunk.masks is not None:  # the token itself may be barred
      is_token_BCW &= ~jnp.isneginf(s_BCW)
    s_slope_BCW += jnp.where(is_token_BCW, slope.chosen_BN, 0)
    if tiles.entropy_gradient:
      surprise_BCW = jnp.where(p_BCW > 0, logp_BCW + found.entropy_BN, 0)
      s_slope_BCW -= slope.entropy_BN * p_BCW * surprise_BCW
    s_slope_BCW = jnp.where(chunk.mask_BC1, s_slope_BCW, 0)
    z_slope_BCW = s_slope_BCW / chunk.temperature
    z_slope_BCW = z_slope_BCW.astype(chunk.hidden_BCD.dtype)
    slope_BCD += product("bcw,dw->bcd", z_slope_BCW, words_DW)
    slope_DW = product("bcd,bcw->dw", chunk.hidden_BCD, z_slope_BCW)
    # Neither a barred word, with s = -inf, nor a masked token counts.
    moment_BCW = jnp.where(s_slope_BCW != 0, s_slope_BCW * s_BCW, 0)
    temperature_slope -= jnp.sum(moment_BCW) / chunk.temperature
    return (
      slope_BCD,
      add_words(tiles, j, slope_DV, slope_DW),
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
  """The words of a tile, its s, and which word each token is."""
  words_DW, word_W, is_new_W = words(tiles, j, chunk.output_DV)
  z_BCW = jnp.einsum(
    "bcd,dw->bcw",
    chunk.hidden_BCD,
    words_DW,
    preferred_element_type=chunk.temperature.dtype,
  )
  is_new_11W = is_new_W[None, None, :]
  s_BCW = jnp.where(is_new_11W, z_BCW / chunk.temperature, -jnp.inf)
  if chunk.masks is not None:
    s_BCW = jnp.where(_allowed(tiles, j, chunk), s_BCW, -jnp.inf)
  is_token_BCW = word_W[None, None, :] == chunk.token_BC1
  return words_DW, s_BCW, is_token_BCW & is_new_11W


def _allowed(tiles: Tiles, j: jax.Array, chunk: _Chunk) -> jax.Array:
  """Which words of a tile each token could have been, bool [B, C, W]."""
  first: int | jax.Array = 0
  if tiles.num_entries < chunk.output_DV.shape[1]:
    first = first_word(tiles, j, chunk.output_DV)
  if chunk.masks.first is not None:
    first += chunk.masks.first
  return allowed_words(
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
  """For each of `size` places, which n it is the place of; [B, size].

  Every place is there once; what is none of them is passed over.
  """

  def of_row(place_N: jax.Array) -> jax.Array:
    n_N = jnp.arange(len(place_N), dtype=place_N.dtype)
    return jnp.zeros(size, place_N.dtype).at[place_N].set(n_N, mode="drop")

  return jax.vmap(of_row)(place_BN)


def num_chunks(tiles: Tiles, tokens: Tokens) -> int | jax.Array:
  """Up to the last one with a token on the mask, where others are skipped."""
  if not tiles.skip:
    return tokens.mask_BN.shape[1] // tiles.num_tokens
  longest = jnp.max(jnp.sum(tokens.mask_BN, axis=1, dtype=jnp.int32))
  return -(-longest // tiles.num_tokens)


def read(tiles: Tiles, i: jax.Array, x_BN: _Tree) -> _Tree:
  """Chunk i of every array."""
  size = tiles.num_tokens
  return jax.tree.map(
    lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1), x_BN
  )


def write(tiles: Tiles, i: jax.Array, x_BN: _Tree, new_BC: _Tree) -> _Tree:
  """Every array with another chunk i."""
  return jax.tree.map(
    lambda x, new: jax.lax.dynamic_update_slice_in_dim(
      x, new.astype(x.dtype), i * tiles.num_tokens, axis=1
    ),
    x_BN,
    new_BC,
  )


def num_tiles(tiles: Tiles, output_DV: jax.Array) -> int:
  """Tiles that all words take."""
  return -(-output_DV.shape[1] // tiles.num_entries)


def first_word(tiles: Tiles, j: jax.Array, output_DV: jax.Array) -> jax.Array:
  """The last tile starts early if it would stick out, and repeats words."""
  return jnp.minimum(
    j * tiles.num_entries, output_DV.shape[1] - tiles.num_entries
  )


def words(
  tiles: Tiles, j: jax.Array, output_DV: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """A tile's columns of the output matrix, their ids, which are no repeats."""
  # Taking all of them by a slice would move them between devices.
  first = first_word(tiles, j, output_DV)
  word_W = first + jnp.arange(tiles.num_entries)
  if tiles.num_entries == output_DV.shape[1]:
    return output_DV, word_W, word_W >= 0
  words_DW = jax.lax.dynamic_slice_in_dim(
    output_DV, first, tiles.num_entries, axis=1
  )
  return words_DW, word_W, word_W >= j * tiles.num_entries


def add_words(
  tiles: Tiles, j: jax.Array, x_DV: jax.Array, new_DW: jax.Array
) -> jax.Array:
  """The array with a tile's columns added to."""
  if tiles.num_entries == x_DV.shape[1]:
    return x_DV + new_DW
  first = first_word(tiles, j, x_DV)
  old_DW = jax.lax.dynamic_slice_in_dim(x_DV, first, tiles.num_entries, axis=1)
  return jax.lax.dynamic_update_slice_in_dim(
    x_DV, old_DW + new_DW, first, axis=1
  )


def vary_like(tree: _Tree, *others: jax.Array) -> _Tree:
  """The same values, typed as differing between devices where others do.

  Outside shard_map nothing differs, and nothing is changed. The gradient of
  what was typed so adds up over the devices.
  """
  wanted = frozenset().union(*(_varying(other) for other in others))

  def vary(x: jax.Array) -> jax.Array:
    missing = tuple(wanted - _varying(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x

  return jax.tree.map(vary, tree)


def _varying(x: jax.Array) -> frozenset[str]:
  return jax.typeof(x).manual_axis_type.varying
