"""Checksums: of the bits, the same wherever they are, another for others."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.checksums import checksums, named_leaves
from agentrl_jax.train.weights.checkpoint import describe_leaf


def reference(leaf) -> int:
  """The module's formula, one element at a time."""
  width = {1: np.uint8, 2: np.uint16, 4: np.uint32}[leaf.dtype.itemsize]
  bits = np.asarray(leaf).reshape(-1).view(width)
  total = 0
  for i, b in enumerate(bits):
    x = (int(b) + i * 0x9E3779B9) % 2**32
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    total += x ^ x >> 16
  return total % 2**32


class ChecksumsTest(parameterized.TestCase):
  def test_is_the_formula(self):
    rng = np.random.default_rng(0)
    leaves = [
      rng.integers(0, 100, shape).astype(dtype)
      if dtype == "uint8"
      else np.asarray(100 * rng.normal(size=shape), jnp.dtype(dtype))
      for dtype in ("float32", "bfloat16", "float16", "int32", "uint8")
      for shape in ((), (1,), (7,), (3, 5), (2, 3, 4))
    ]
    found = checksums(leaves)
    for leaf, total in zip(leaves, found, strict=True):
      with self.subTest(f"{leaf.dtype}{leaf.shape}"):
        self.assertEqual(int(total), reference(leaf))

  def test_every_change_of_one_bit_and_every_exchange_is_seen(self):
    leaf = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    right = int(checksums(jnp.asarray(leaf)))
    bits = leaf.view(np.uint32).reshape(-1)
    others = []
    for i in range(bits.size):
      for bit in range(0, 32, 5):
        changed = bits.copy()
        changed[i] ^= np.uint32(1 << bit)
        others.append(changed)
      exchanged = bits.copy()
      j = (i + 1) % bits.size
      exchanged[[i, j]] = bits[[j, i]]
      others.append(exchanged)
    batch = jnp.asarray(np.stack(others)).reshape(-1, 4, 3)
    found = jax.vmap(checksums)(batch)
    self.assertNotIn(right, np.asarray(found).tolist())

  def test_a_part_that_reads_as_zeros_is_seen(self):
    leaf = np.ones((8, 8), np.float32)
    part = leaf.copy()
    part[4:] = 0
    self.assertNotEqual(int(checksums(leaf)), int(checksums(part)))

  def test_names_and_descriptions(self):
    tree = {"b": {"kernel": jnp.ones((2, 3))}, "a": (jnp.ones(4, "bfloat16"),)}
    self.assertEqual(
      {name: describe_leaf(leaf) for name, leaf in named_leaves(tree).items()},
      {"a.0": "bfloat16[4]", "b.kernel": "float32[2, 3]"},
    )
