"""Behaviour of every function, on the arguments of the test vectors.

Transformations, gradients, batches without trained tokens or without rows, and
refused shapes.
"""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from tests.golden.vectors import sections
from tests.losses.library.cases import IN_HASTE, arrays_of, few, to_argument

# The arguments that get a gradient; all others are constants.
DIFFERENTIABLE = {
  "agentrl_loss": {"policy_logprob_BT"},
  "cispo": {"policy_logprob_BT"},
  "clipped_surrogate": {"log_ratio_BT"},
  "clipped_value_loss": {"value_BT"},
  "decoupled_surrogate": {"log_ratio_BT"},
  "dppo": {"policy_logprob_BT"},
  "entropy": {"logits_BTV"},
  "fixed_length_mean": {"x_BT"},
  "fused_token_logprob": {"hidden_BTD", "output_DV"},
  "gmpo": {"log_ratio_BT"},
  "gspo_token_log_ratio": {"log_ratio_BT"},
  "k1": {"log_ratio_BT"},
  "k2": {"log_ratio_BT"},
  "k3": {"log_ratio_BT"},
  "log_ratio": {"policy_logprob_BT"},
  "negative_log_likelihood": {"logprob_BT"},
  "pair_mean": {"x_P"},
  "reinforce": {"log_ratio_BT"},
  "reverse_kl": {"logits_BTV"},
  "sapo": {"log_ratio_BT"},
  "segment_mean": {"x_BT"},
  "sequence_log_ratio": {"log_ratio_BT"},
  "sequence_mean": {"x_BT"},
  "sequence_sum_mean": {"x_BT"},
  "token_logprob": {"logits_BTV"},
  "token_mean": {"x_BT"},
  "unbiased_kl": {"log_ratio_BT"},
  "weighted_mean": {"x_BT"},
  "with_gradient_of": {"gradient"},
}
# Axes of trajectories, pairs and tokens, which a mask may leave out.
BATCH_AXES = {"BT", "BTD", "BTV", "N", "NK", "NN", "NU", "P"}
# `cispo`, `dppo` and `gmpo` leave it to a reduction to hide NaN, and no token
# has infinite extremes. The others are given no array with one of these axes.
NOT_ZERO = {
  "blend_moments",
  "cispo",
  "dppo",
  "extremes",
  "gmpo",
  "measure_tasks",
  "normalise_by_moments",
  "with_gradient_of",
}


def _axes(name):
  return name.rpartition("_")[2]


def _result(block, arrays):
  settings = {
    name: to_argument(name, value)
    for name, value in block["arguments"].items()
    if name not in arrays
  }
  function = getattr(losses, block["function"])
  return function(**arrays, **settings)


def _leaves(block, arrays):
  return jax.tree.leaves(_result(block, arrays))


def _together(functions, arguments):
  """All results from one program: compiling is what takes time."""
  program = jax.jit(
    lambda arguments: [f(x) for f, x in zip(functions, arguments, strict=True)],
    compiler_options=IN_HASTE,
  )
  return program(arguments)


def _of_dtype(arrays, dtype):
  return {
    name: x
    for name, x in arrays.items()
    if isinstance(x, jax.Array | np.ndarray) and x.dtype == dtype
  }


def _values_and_gradients(block, arrays):
  """All numbers of the result, and the gradient of a function of them."""

  def total(floats):
    result = _result(block, arrays | floats)
    sums = jax.tree.leaves(result, is_leaf=_has_value)
    numbers = [x.value() for x in sums if _has_value(x)]
    numbers += jax.tree.leaves(result)
    finite = [jnp.where(jnp.isfinite(x), x, 0) for x in numbers]
    return sum(jnp.sum((x + 1.0) ** 2) for x in finite), numbers

  (_, numbers), gradients = jax.value_and_grad(total, has_aux=True)(
    _of_dtype(arrays, jnp.float32)
  )
  return numbers, gradients


def _has_value(x):
  return callable(getattr(x, "value", None))


@functools.cache
def _program(module):
  """Values and gradients of a module's functions, for all tests of these."""
  blocks = few(module)
  return jax.jit(
    lambda arrays: list(map(_values_and_gradients, blocks, arrays)),
    compiler_options=IN_HASTE,
  )


def _all_values_and_gradients(module, make_arrays):
  blocks = few(module)
  results = _program(module)([make_arrays(block) for block in blocks])
  return zip(blocks, results, strict=True)


def _without_trained(block):
  """Masks that are off, and NaN for what they hide."""
  arrays = arrays_of(block)
  hidden = [
    name for name in _of_dtype(arrays, jnp.float32) if _axes(name) in BATCH_AXES
  ]
  return (
    arrays
    | {name: np.full_like(arrays[name], np.nan) for name in hidden}
    | {name: x & False for name, x in _of_dtype(arrays, bool).items()}
  )


def _without_rows(block):
  return {
    name: x[:0, :0]
    if _axes(name) == "NN"
    else x[:, :0]
    if _axes(name) == "2N"
    else x[:0]
    if _axes(name) in BATCH_AXES
    else x
    for name, x in arrays_of(block).items()
  }


def _other_shapes(block):
  """Name of an argument, and the argument with another rank or length."""
  arrays = {
    name: x for name, x in arrays_of(block).items() if isinstance(x, np.ndarray)
  }
  for name, x in arrays.items():
    if block["function"] == "normalised_weight":
      continue  # takes weights of any shape
    yield name, x[None]
    for axis in range(x.ndim - name.endswith("V")):
      if len(arrays) > 1 and x.shape[axis] > 1:
        yield name, np.take(x, [0], axis=axis)


class TransformationsTest(parameterized.TestCase):
  @parameterized.parameters(*sections())
  @pytest.mark.slow
  def test_vmap_is_a_loop(self, module):
    blocks = [block for block in few(module) if arrays_of(block)]
    arrays = [arrays_of(block) for block in blocks]
    functions = [lambda x, b=block: _leaves(b, x) for block in blocks]
    results = _together(functions, arrays)
    pairs = jax.tree.map(lambda x: np.stack([x, x]), arrays)
    mapped = _together([jax.vmap(f) for f in functions], pairs)
    for block, leaves, pairs in zip(blocks, results, mapped, strict=True):
      with self.subTest(block["function"]):
        for leaf, pair in zip(leaves, pairs, strict=True):
          np.testing.assert_allclose(
            pair, np.stack([leaf, leaf]), rtol=1e-5, atol=1e-6
          )

  @parameterized.parameters(*sections())
  def test_bfloat16_is_computed_in_float32(self, module):
    def narrow(x):
      return x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x

    for block in few(module):
      if "moments" in block["arguments"] or "running" in block["arguments"]:
        continue  # made by the library, in its own precision
      shapes = jax.tree.map(narrow, arrays_of(block))
      with self.subTest(block["function"]):
        for leaf in jax.eval_shape(lambda x, b=block: _leaves(b, x), shapes):
          self.assertNotEqual(leaf.dtype, jnp.bfloat16)


class GradientTest(parameterized.TestCase):
  @parameterized.parameters(*sections())
  def test_only_the_arguments_of_the_table_get_a_gradient(self, module):
    differentiable = collections.defaultdict(set)
    for block, (_, gradients) in _all_values_and_gradients(module, arrays_of):
      differentiable[block["function"]] |= {
        name for name, gradient in gradients.items() if np.any(gradient != 0)
      }
    self.assertEqual(
      differentiable,
      {name: DIFFERENTIABLE.get(name, set()) for name in differentiable},
    )


class EmptyBatchTest(parameterized.TestCase):
  @parameterized.parameters(*sections())
  def test_nothing_trained_gives_zeros(self, module):
    self.require_zeros(
      module, _without_trained, lambda b: bool(_of_dtype(arrays_of(b), bool))
    )

  @parameterized.parameters(*sections())
  def test_no_rows_give_zeros(self, module):
    self.require_zeros(module, _without_rows, lambda block: True)

  def require_zeros(self, module, make_arrays, concerned):
    for block, results in _all_values_and_gradients(module, make_arrays):
      if block["function"] in NOT_ZERO or not concerned(block):
        continue
      with self.subTest(block["function"]):
        for x in jax.tree.leaves(results):
          np.testing.assert_array_equal(x, np.zeros(x.shape))


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(*sections())
  def test_another_shape(self, module):
    for block in few(module):
      for name, x in _other_shapes(block):
        with self.subTest(block["function"], argument=name, shape=x.shape):
          self.require_refused(block, {name: x})

  @parameterized.parameters(*sections())
  def test_a_mask_that_is_not_bool(self, module):
    for block in few(module):
      for name, x in _of_dtype(arrays_of(block), bool).items():
        with self.subTest(block["function"], argument=name):
          self.require_refused(block, {name: x.astype(jnp.float32)})

  def require_refused(self, block, changes):
    with self.assertRaises(AssertionError):
      jax.eval_shape(lambda x: _leaves(block, x), arrays_of(block) | changes)
