"""The order of tokens in packed rows: which ones each token comes after.

Rows are sequences one after another, or prefix trees (`data.packing`). Both are
forests in depth-first order, in which token t comes after token s if
s <= t < end[s]; a sequence is a tree without branches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.model.attention.packed import segment_ends


class Ancestry(NamedTuple):
  """Of tokens of rows; made once for all layers by `ancestry`."""

  is_real_BT: jax.Array  # bool, no padding
  end_BT: jax.Array  # int32, index after the last token that comes after it
  # int32, index of the token just before in its tree; -1 is none. None of rows
  # of sequences, where it is the neighbour.
  parent_BT: jax.Array | None

  def before(self, x_BTD: jax.Array, back: int) -> jax.Array:
    """Returns x of the ancestor `back` tokens before; 0 where there is none."""
    place_T = jnp.arange(x_BTD.shape[1])
    if self.parent_BT is None:
      skip = min(back, len(place_T))
      end_BT, x_BTD = (
        jnp.pad(x, ((0, 0), (skip, 0), *[(0, 0)] * (x.ndim - 2)))[
          :, : x.shape[1]
        ]
        for x in (self.end_BT, x_BTD)
      )
      return jnp.where((place_T < end_BT)[..., None], x_BTD, 0)
    at_BT = jnp.broadcast_to(place_T, self.end_BT.shape)
    for _ in range(back):
      parent_BT = jnp.take_along_axis(self.parent_BT, at_BT, axis=1)
      at_BT = jnp.where(at_BT < 0, -1, parent_BT)
    x_BTD = jnp.take_along_axis(x_BTD, at_BT[..., None], axis=1)
    return jnp.where((at_BT >= 0)[..., None], x_BTD, 0)


def ancestry(
  segment_BT: jax.Array | None, end_BT: jax.Array | None = None
) -> Ancestry:
  """Reads the order from segments, or from the ends of subtrees of trees.

  Padding is segment 0, or end 0. In rows of sequences it belongs to the
  sequence before it, so that a state passes through it: the layer gives it no
  weight. A token of a tree compares itself with all others to find its parent,
  T^2 integers of a row that no array holds.
  """
  if end_BT is None:
    assert segment_BT is not None
    before_BT = jnp.pad(segment_BT[:, :-1], ((0, 0), (1, 0)))
    is_first_BT = (segment_BT > 0) & (segment_BT != before_BT)
    number_BT = jnp.maximum(jnp.cumsum(is_first_BT, axis=1), 1)
    return Ancestry(segment_BT > 0, segment_ends(number_BT), None)
  place_T = jnp.arange(end_BT.shape[1])
  last_BT = jnp.maximum(end_BT, place_T + 1)
  is_before_BTS = (place_T < place_T[:, None]) & (
    place_T[:, None] < last_BT[:, None]
  )
  parent_BT = jnp.max(jnp.where(is_before_BTS, place_T, -1), axis=2)
  return Ancestry(end_BT > 0, last_BT, parent_BT)
