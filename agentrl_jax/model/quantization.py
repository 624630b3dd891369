"""Weights of rollouts in eight bits, with a scale for each output channel.

  w ~ scale * values, scale = max |w| of the channel / largest value of the type

Kernels of projections, experts' matrices and an untied output matrix are
stored so; embedding, norms, biases, router and critic stay as they are.
Decoding is bound by the bytes that it reads: a product converts `values` as it
reads them, exactly, and multiplies its outputs by the scales. Activations are
not quantised.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.model.lora import INPUT_AXES

Params = dict[str, Any]

# Of `EngineConfig.weights`; "full" stores them as they are.
DTYPES: Mapping[str, Any] = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
# Names of the two arrays of a kernel, in paths of params.
VALUES, SCALE = "values", "channel_scale"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
  """A kernel in eight bits, in the place of the array that it stands for."""

  values: jax.Array  # of the kernel's shape
  channel_scale: jax.Array  # float32, of length 1 along the axes of inputs

  def __getitem__(self, index: Any) -> "Quantized":
    """Returns itself for `...`, by which flax reads a parameter."""
    assert index is Ellipsis, index
    return self

  def __len__(self) -> int:
    """Length of the first axis."""
    return len(self.values)


def quantize(params: Params, weights: str, *, donates: bool = False) -> Params:
  """Quantises params with stacked or separate layers, inputs of kernels first.

  `weights` is one of `DTYPES`, or "full", which returns the params. With
  `donates` each kernel is freed before the next is quantised.
  """
  if weights == "full":
    return params
  dtype = DTYPES[weights]

  def quantized(keys: Any, leaf: jax.Array) -> Any:
    axes = _input_axes([getattr(key, "key", None) for key in keys])
    if not axes or not donates:
      return _rounded(leaf, axes, dtype) if axes else leaf
    small = jax.block_until_ready(_rounded_apart(leaf, axes, dtype))
    leaf.delete()
    return small

  return jax.tree_util.tree_map_with_path(quantized, params)


def _input_axes(path: Sequence[str | None]) -> tuple[int, ...]:
  """Returns the axes that a product sums over; () for other params."""
  *_, owner, name = None, *path
  is_stacked = len(path) > 2 and None not in path  # by number if apart
  if name == "kernel" and owner in {"head", *INPUT_AXES}:
    first, number = 0, INPUT_AXES.get(owner, 1)
  elif owner == "experts" and name in ("gate", "up", "down"):
    first, number = 1, 1  # after that of the experts
  else:
    return ()
  return tuple(n + first + is_stacked for n in range(number))


def _rounded(kernel: jax.Array, axes: tuple[int, ...], dtype: Any) -> Quantized:
  is_float = jnp.issubdtype(dtype, jnp.floating)
  largest = (jnp.finfo if is_float else jnp.iinfo)(dtype).max
  kernel = kernel.astype(jnp.float32)
  scale = jnp.abs(kernel).max(axes, keepdims=True) / float(largest)
  values = kernel / jnp.where(scale == 0, 1, scale)
  values = values if is_float else jnp.round(values)
  return Quantized(values.astype(dtype), scale)


_rounded_apart = jax.jit(_rounded, static_argnums=(1, 2))


def dequantized(kernel: jax.Array | Quantized, dtype: Any) -> jax.Array:
  """Computes the array that a kernel of any form stands for."""
  if not isinstance(kernel, Quantized):
    return kernel.astype(dtype)
  values = kernel.values.astype(jnp.float32)
  return (values * kernel.channel_scale).astype(dtype)


def converted(kernel: jax.Array | Quantized, dtype: Any) -> Any:
  """Casts an array to the dtype of a product, for which others are ready."""
  return kernel if isinstance(kernel, Quantized) else kernel.astype(dtype)


def project(
  product: Callable[[jax.Array, jax.Array, int], jax.Array],
  x: jax.Array,
  kernel: jax.Array | Quantized,
  num_axes: int,
) -> jax.Array:
  """Applies `product` to a kernel of any form; see `layers.projection`."""
  if not isinstance(kernel, Quantized):
    return product(x, kernel.astype(x.dtype), num_axes)
  y = product(x, kernel.values.astype(x.dtype), num_axes)
  scale = kernel.channel_scale.reshape(y.shape[x.ndim - num_axes :])
  return (y * scale).astype(x.dtype)


def ragged_dot(
  x_PM: jax.Array, matrix_EMN: jax.Array | Quantized, size_E: jax.Array
) -> jax.Array:
  """Computes `jax.lax.ragged_dot` by matrices of any form."""
  if not isinstance(matrix_EMN, Quantized):
    return jax.lax.ragged_dot(x_PM, matrix_EMN, size_E)
  # Not cast before: compilers for TPUs would write all matrices so.
  y_PN = jax.lax.ragged_dot(
    x_PM, matrix_EMN.values, size_E, preferred_element_type=x_PM.dtype
  )
  scale_PN = jnp.repeat(
    matrix_EMN.channel_scale[:, 0], size_E, 0, total_repeat_length=len(x_PM)
  )
  return (y_PN * scale_PN).astype(x_PM.dtype)
