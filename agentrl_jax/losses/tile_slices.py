"""How the work is cut into tiles: slices of tokens and of words.

Axes: B rows, T tokens, D width, V vocabulary, N tokens in the order of work,
C tokens of a chunk, W words of a chunk.
"""

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

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
