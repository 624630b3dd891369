"""Which devices inside shard_map a value may differ between, as jax sees it.

A loop must hand on what it was given, in type too: sums that start from zeros,
which are the same everywhere, but take in what differs must start as differing.
"""

from typing import TypeVar

import jax

_Tree = TypeVar("_Tree")


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
