"""The products that a decoder is made of, and gradients laid out for them.

Axes: R rows, M inputs, N outputs.
"""

import functools
import math

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """The last `num_axes` axes of x times the first ones of the kernel.

  `tensordot`, but for its gradient. What `jax.grad` makes of that one computes
  the kernel's gradient transposed and turns it round, for which XLA on a CPU
  copies the gradient of the output, at nearly the price of the product itself.
  """
  return jnp.tensordot(x, kernel, axes=num_axes)


def _forward(x, kernel, num_axes):
  return project(x, kernel, num_axes), (x, kernel)


def _backward(num_axes, kept, gradient):
  x, kernel = kept
  outputs = tuple(range(num_axes, kernel.ndim))
  of_x = jax.lax.dot_general(
    gradient, kernel, ((_last(gradient, len(outputs)), outputs), ((), ()))
  )
  rows = tuple(range(x.ndim - num_axes))
  of_kernel = jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))
  return of_x, of_kernel


def _last(x: jax.Array, number: int) -> tuple[int, ...]:
  return tuple(range(x.ndim - number, x.ndim))


project.defvjp(_forward, _backward)

# Rows for which packing a kernel takes longer than it saves.
_FEW = 64


def project_turned(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """`project` by a kernel that has its outputs first; for CPUs, no gradient.

  XLA's products on a CPU take their left factor as it lies, and pack the right
  one into tiles anew in every call. A few rows do not earn a kernel's packing,
  so it stands on the left, y^T = W x^T. The barriers keep XLA from turning the
  product back.
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def project_adapted(
  x: jax.Array,
  kernel: jax.Array,
  a: jax.Array,
  b: jax.Array,
  num_axes: int,
  scale: float,
) -> jax.Array:
  """`project` by a kernel that has `scale` a b in it already.

  The gradient goes to x, a [inputs, r] and b [r, outputs] and not to the
  kernel: products as thin as r take the place of one as wide as the kernel.
  """
  del a, b, scale
  return project(x, kernel, num_axes)


def _adapted_forward(x, kernel, a, b, num_axes, scale):
  y = project_adapted(x, kernel, a, b, num_axes, scale)
  return y, (x, kernel, a, b)


def _adapted_backward(num_axes, scale, kept, gradient):
  x, kernel, a, b = kept
  of_x, _ = _backward(num_axes, (x, kernel), gradient)
  low, back_to_a = jax.vjp(lambda a: project(x, a, num_axes), a)
  _, back_to_b = jax.vjp(lambda low, b: project(low, b, 1), low, b)
  of_low, of_b = back_to_b(gradient * scale)
  (of_a,) = back_to_a(of_low)
  return of_x, jnp.zeros_like(kernel), of_a, of_b


project_adapted.defvjp(_adapted_forward, _adapted_backward)
