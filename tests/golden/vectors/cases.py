"""A case of a function: what goes in, and what must come out."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.reference import finite_difference


@dataclasses.dataclass(frozen=True)
class Case:
  """One entry of the page; arrays are nested lists, as they are printed."""

  function: str
  about: str
  arguments: Mapping[str, Any]
  returns: Any
  gradient: Mapping[str, Any]  # by argument; empty if there is none to check


def case(
  function: str,
  about: str,
  reference: Callable[..., Any],
  arguments: Mapping[str, Any],
  *,
  names: tuple[str, ...] = (),
  by: tuple[str, ...] = (),
  differentiable: Callable[[np.ndarray], Any] | None = None,
) -> Case:
  """Asks the reference, with those of the arguments that it knows.

  The loops need no sizes that are fixed when compiled, such as num_groups.

  Args:
    function: its public name.
    about: what the case shows, in a sentence.
    reference: a loop of `tests.reference`, called with numpy arrays.
    arguments: of the function, by name; lists for arrays.
    names: of what the reference returns as a tuple.
    by: the arguments to give the gradient for, if any.
    differentiable: the reference as a function of that argument alone, where
      a part of it is held constant.
  """
  known = _known(reference, arguments)
  result = reference(**known)
  returns = dict(zip(names, result, strict=True)) if names else result
  slopes = {}
  for argument in by:
    function_of = differentiable or (
      lambda x, argument=argument: reference(**{**known, argument: x})
    )
    slopes[argument] = finite_difference.gradient(
      lambda x, f=function_of: _sum(f(x)), known[argument]
    )
  return Case(function, about, arguments, returns, slopes)


def arrays(arguments: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments with numpy arrays for lists."""
  return {
    name: np.array(value) if isinstance(value, list) else value
    for name, value in arguments.items()
  }


def mean(reference: Callable[..., Any]) -> Callable[..., Any]:
  """A loop that returns total and weight, with their quotient."""

  def with_value(*args, **kwargs):
    total, weight = reference(*args, **kwargs)
    value = total / weight if weight else 0.0
    return {"total": total, "weight": weight, "value()": value}

  with_value.__signature__ = inspect.signature(reference)
  return with_value


def _known(reference, arguments):
  parameters = inspect.signature(reference).parameters
  every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return {
    name: value
    for name, value in arrays(arguments).items()
    if every or name in parameters
  }


def _sum(result):
  """What is differentiated: the first of several, the total of a mean."""
  if isinstance(result, dict):
    return result["total"]
  return np.sum(result[0] if isinstance(result, tuple) else result)
