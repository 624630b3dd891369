"""Norms, and products with params: what every kind of layer is made of.

Axes of products: R rows, M inputs, N outputs.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model import lora, quantization
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.lora import LoraConfig

Array = jax.Array

ACTIVATE = {
  "silu": jax.nn.silu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


class RMSNorm(nnx.Module):
  """x / rms(x) * scale over the last axis (arXiv:1910.07467), in float32.

  Where it is `zero_centered`, the scale is 1 more than the parameter.
  """

  def __init__(self, size: int, c: ModelConfig):
    self.epsilon, self.zero_centered = c.norm_epsilon, c.zero_centered_norm
    self.scale = nnx.Param(
      (jnp.zeros if self.zero_centered else jnp.ones)(size)
    )

  def __call__(self, x: Array) -> Array:
    """Normalises x; its shape and dtype stay."""
    scale = self.scale[...]
    if self.zero_centered:
      scale = 1 + scale
    return (normed(x, self.epsilon) * scale).astype(x.dtype)


def normed(x: Array, epsilon: float) -> Array:
  """Divides x by its root mean square over the last axis, in float32."""
  y = x.astype(jnp.float32)
  return y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)


class Projection(nnx.Module):
  """x W, plus b if there is a bias; input and output may have several axes."""

  adapter_scale = 0.0  # of the adapter, where there is one

  def __init__(
    self,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    *,
    gain: float = 1.0,
    bias: bool = False,
    rngs: nnx.Rngs,
  ):
    fan_in = math.prod(inputs)
    self.kernel = nnx.Param(
      jax.random.normal(rngs.params(), inputs + outputs) * gain * fan_in**-0.5
    )
    self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None
    self.inputs, self.outputs = inputs, outputs

  def add_adapter(self, config: LoraConfig, name: str) -> None:
    """Adds two low-rank factors, already merged into the kernel in use."""
    del name  # there is one kernel
    self.lora_a = nnx.Param(jnp.zeros((*self.inputs, config.rank)))
    self.lora_b = nnx.Param(jnp.zeros((config.rank, *self.outputs)))
    self.adapter_scale = config.scale

  def turn(self) -> None:
    """Stores the kernel with its outputs first, for decoding on a CPU."""
    self.kernel = None
    self.turned = nnx.Param(jnp.zeros(self.outputs + self.inputs))

  def __call__(self, x: Array) -> Array:
    """Contracts the last axes of x with those of the kernel."""
    y = self._product(x)
    if self.bias is not None:
      y = y + self.bias[...].astype(x.dtype)
    return y

  def matrix(self, dtype: jnp.dtype) -> Array:
    """Returns the kernel in whichever form it is stored, inputs first."""
    if self.kernel is not None:
      return quantization.dequantized(self.kernel[...], dtype)
    inputs = range(len(self.inputs))
    turned = quantization.dequantized(self.turned[...], dtype)
    return jnp.moveaxis(turned, [n - len(inputs) for n in inputs], inputs)

  def _product(self, x: Array) -> Array:
    num_axes = len(self.inputs)
    if self.kernel is None:
      return quantization.project(project_turned, x, self.turned[...], num_axes)
    if not self.adapter_scale:
      return quantization.project(project, x, self.kernel[...], num_axes)
    kernel = self.kernel[...].astype(x.dtype)
    a, b = (p[...].astype(x.dtype) for p in (self.lora_a, self.lora_b))

    def inwards(x: Array, kernel: Array) -> Array:
      return project(x, kernel, num_axes)

    def outwards(low: Array, b: Array) -> Array:
      return project(low, b, 1)

    products = inwards, inwards, outwards
    return lora.multiply(products, self.adapter_scale, x, kernel, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """Multiplies the last `num_axes` axes of x by the first ones of the kernel.

  Equal to `tensordot`, but for its gradient: `jax.grad` of `tensordot` computes
  the kernel's gradient transposed, for which XLA on a CPU copies the gradient
  of the output, at nearly the price of the product itself.
  """
  return jnp.tensordot(x, kernel, axes=num_axes)


def _project_forward(x, kernel, num_axes):
  return project(x, kernel, num_axes), (x, kernel)


def _project_backward(num_axes, kept, gradient):
  x, kernel = kept
  rows = tuple(range(x.ndim - num_axes))
  outputs = tuple(range(num_axes, kernel.ndim))
  last = tuple(range(len(rows), gradient.ndim))
  of_x = jax.lax.dot_general(gradient, kernel, ((last, outputs), ((), ())))
  of_kernel = jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))
  return of_x, of_kernel


project.defvjp(_project_forward, _project_backward)

# Rows for which packing a kernel takes longer than it saves.
_FEW = 64


def project_turned(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """Computes `project` by a kernel with its outputs first; no gradient.

  XLA's products on a CPU take their left factor as it is stored, and pack the
  right one into tiles anew in every call. For a few rows packing the kernel
  costs more than it saves, so the kernel is the left factor, y^T = W x^T. The
  barriers keep XLA from transposing the product back.
  """
  outputs = kernel.shape[: kernel.ndim - num_axes]
  rows = x.shape[: x.ndim - num_axes]
  kernel_NM = kernel.reshape(math.prod(outputs), -1)
  x_RM = x.reshape(math.prod(rows), -1)
  if len(x_RM) > _FEW:
    y_RN = jnp.einsum("rm,nm->rn", x_RM, kernel_NM)
  else:
    x_MR = jax.lax.optimization_barrier(x_RM.T)
    y_RN = jax.lax.optimization_barrier(kernel_NM @ x_MR).T
  return y_RN.reshape(*rows, *outputs)
