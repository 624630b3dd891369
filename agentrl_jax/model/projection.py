"""The product that a decoder is made of, and its gradient, laid out for it."""

import functools

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
