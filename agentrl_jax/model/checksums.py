"""Checksums of params that show on any mesh whether every bit arrived.

  sum over i of mix(bits_i + i * 0x9E3779B9)  modulo 2^32

with i the position in the whole array, and mix the finaliser of MurmurHash3.
The mix is one to one, so that no change of a single number can pass, and it has
no regularity by which sums of products miss whole rows of ones. Integer sums
that wrap around are the same in any order, so the checksum does not depend on
the split of a leaf over devices and processes, and is computed on them.
"""

from typing import Any

import jax
import jax.numpy as jnp

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def named_leaves(tree: Any) -> dict[str, Any]:
  """Maps flat names to leaves, in order: "layers.mlp.up.kernel"."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


@jax.jit
def checksums(leaves: Any) -> Any:
  """Computes the checksum of each leaf of a tree, uint32 []."""
  return jax.tree.map(_checksum, leaves)


def _checksum(leaf: jax.Array) -> jax.Array:
  bits = jax.lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize])
  position = jnp.zeros(leaf.shape, jnp.uint32)
  stride = 1
  for axis in reversed(range(leaf.ndim)):
    along = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    position += along * jnp.uint32(stride % 2**32)
    stride *= leaf.shape[axis]
  mixed = _mix(bits.astype(jnp.uint32) + position * jnp.uint32(0x9E3779B9))
  return jnp.sum(mixed, dtype=jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
