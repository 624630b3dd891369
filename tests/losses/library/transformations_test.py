"""The functions under vmap and in bfloat16, on the page's test vectors."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from tests.losses.library.test_vectors_test import (
  IN_HASTE,
  sections,
  to_argument,
)


def _arrays(block):
  return {
    name: to_argument(name, value)
    for name, value in block["arguments"].items()
    if isinstance(value, list | Mapping)
  }


def _leaves(block, arrays):
  """What the function returns, flat."""
  settings = {
    name: to_argument(name, value)
    for name, value in block["arguments"].items()
    if name not in arrays
  }
  function = getattr(losses, block["function"])
  return jax.tree.leaves(function(**arrays, **settings))


def _together(functions, arguments):
  """All results from one program: compiling is what takes time."""
  program = jax.jit(
    lambda arguments: [f(x) for f, x in zip(functions, arguments, strict=True)],
    compiler_options=IN_HASTE,
  )
  return program(arguments)


class TransformationsTest(parameterized.TestCase):
  @pytest.mark.slow
  @parameterized.parameters(*sections())
  def test_vmap_is_a_loop(self, module):
    blocks = [block for block in sections()[module] if _arrays(block)]
    arrays = [_arrays(block) for block in blocks]
    functions = [lambda x, b=block: _leaves(b, x) for block in blocks]
    alone = _together(functions, arrays)
    pairs = jax.tree.map(lambda x: jnp.stack([x, x]), arrays)
    paired = _together([jax.vmap(f) for f in functions], pairs)
    for block, wanted, found in zip(blocks, alone, paired, strict=True):
      with self.subTest(block["function"]):
        for one, two in zip(wanted, found, strict=True):
          np.testing.assert_allclose(
            two, np.stack([one, one]), rtol=1e-5, atol=1e-6
          )

  @parameterized.parameters(*sections())
  def test_bfloat16_is_computed_in_float32(self, module):
    def narrow(x):
      return x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x

    for block in sections()[module]:
      if "moments" in block["arguments"] or "running" in block["arguments"]:
        continue  # made by the library, in its own precision
      shapes = jax.tree.map(narrow, _arrays(block))
      with self.subTest(block["function"]):
        for leaf in jax.eval_shape(lambda x, b=block: _leaves(b, x), shapes):
          self.assertNotEqual(leaf.dtype, jnp.bfloat16)
