"""The losses as compiled programs, for tests that call them on numbers.

Eagerly every primitive is a program of its own at every shape and dtype. Here
a call is one, whose settings are constants as they are where users jit it.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@functools.cache
def functions_of(module: types.ModuleType) -> types.SimpleNamespace:
  """Returns all that a module has, its functions compiled."""
  return types.SimpleNamespace(
    **{
      name: compiled(x) if inspect.isfunction(x) else x
      for name, x in vars(module).items()
    }
  )


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function, one program for each shape and setting.

  Arrays are traced, in records and lists too; numbers, words and None are
  settings, so a number that many values are tried of is passed as an array.
  """

  @functools.partial(jax.jit, static_argnums=(1, 2))
  def program(arrays, form, settings):
    leaves = [
      x if setting is None else setting
      for x, setting in zip(arrays, settings, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(form, leaves)
    return function(*args, **kwargs)

  @functools.wraps(function)
  def call(*args, **kwargs):
    leaves, form = jax.tree.flatten((args, kwargs))
    arrays = [x if isinstance(x, ARRAYS) else None for x in leaves]
    settings = tuple(None if isinstance(x, ARRAYS) else x for x in leaves)
    return program(arrays, form, settings)

  return call


def grad(function: Callable[..., Any], **options) -> Callable[..., Any]:
  return jax.jit(jax.grad(function, **options))


def value_and_grad(
  function: Callable[..., Any], **options
) -> Callable[..., Any]:
  return jax.jit(jax.value_and_grad(function, **options))


ARRAYS = (jax.Array, np.ndarray)
