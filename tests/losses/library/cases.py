"""Cases of the test vectors as calls of the library, and further numbers."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from tests.golden import make_test_vectors
from tests.golden.vectors import sections, to_array

TYPES = {
  frozenset(field.name for field in dataclasses.fields(kind)): kind
  for kind in (losses.Mean, losses.TaskMoments)
}
# Some 90 small programs, each run once: most of the time goes to compiling.
IN_HASTE = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}


def to_argument(name: str, value: Any) -> Any:
  if name == "estimator":
    return getattr(losses, value)
  if isinstance(value, list):
    return as_jax_has_it(to_array(value))
  if isinstance(value, Mapping):
    fields = {field: as_jax_has_it(x) for field, x in value.items()}
    return TYPES[frozenset(fields)](**fields)
  return value


def as_jax_has_it(x: Any) -> np.ndarray:
  """Returns an array of numpy, which is cut and masked without a program."""
  x = np.asarray(x)
  return x.astype(jax.dtypes.canonicalize_dtype(x.dtype))


def part_of(result: Any, name: str, place: int) -> Any:
  """A field, an entry, or the result of a method."""
  if name.endswith("()"):
    return getattr(result, name.removesuffix("()"))()
  if isinstance(result, Mapping):
    return result[name]
  return result[place] if type(result) is tuple else getattr(result, name)


def call(block: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple:
  """Returns the function's result, and the gradients of the case."""
  function = getattr(losses, block["function"])
  arguments = block["arguments"]
  settings = {
    n: to_argument(n, arguments[n]) for n in arguments.keys() - arrays
  }

  def differentiated(x: jax.Array, name: str) -> jax.Array:
    result = function(**{**arrays, name: x}, **settings)
    if isinstance(result, losses.Mean):
      return result.total
    return jnp.sum(result[0] if isinstance(result, tuple) else result)

  slopes = {
    name: jax.grad(differentiated)(arrays[name], name)
    for name in block.get("gradient", {})
  }
  return function(**arrays, **settings), slopes


def compiled(blocks: list[Mapping[str, Any]]) -> Callable[[list], list]:
  """Returns one program of all cases, a function of their arrays."""
  return jax.jit(
    lambda arrays: list(map(call, blocks, arrays)), compiler_options=IN_HASTE
  )


def arrays_of(
  block: Mapping[str, Any], seed: int | None = None
) -> dict[str, Any]:
  """Returns the arrays of a case, with a seed other numbers."""
  arguments = block["arguments"] if seed is None else draw(block, seed)
  return {
    name: to_argument(name, value)
    for name, value in arguments.items()
    if isinstance(value, list | Mapping)
  }


def vary(block: Mapping[str, Any], seed: int) -> dict[str, Any]:
  """Returns a drawn case with what the loops compute of it."""
  return make_test_vectors.computed(block | {"arguments": draw(block, seed)})


def draw(block: Mapping[str, Any], seed: int) -> dict[str, Any]:
  """Returns a case's arguments with other numbers.

  Each array has some of its own numbers in other places; from the second seed
  on they are stretched too. So signs, ties and bounds stay as they are meant.
  Fewer entries are on the masks; off them stands 0, or NaN where the case has
  null.
  """
  rng = np.random.default_rng(seed)
  arguments = dict(block["arguments"])
  masks = {}
  for name, value in arguments.items():
    if isinstance(value, list) and (x := to_array(value)).dtype == bool:
      x &= rng.random(x.shape) < 0.8
      masks[name.rpartition("_")[2]] = x
      arguments[name] = x.tolist()
  for name, value in arguments.items():
    if not isinstance(value, list) or to_array(value).dtype != float:
      continue
    x = to_array(value)
    is_number = ~np.isnan(x)
    if is_number.any():
      x[is_number] = rng.choice(x[is_number], size=is_number.sum())
      x *= 1 + 0.3 * (seed > 1) * rng.random(x.shape)
    mask = masks.get(name.rpartition("_")[2])
    if mask is not None:
      x[~mask] = 0 if is_number.all() else np.nan
    arguments[name] = _plain(x)
  if {"policy_logprob_BT", "log_ratio_BT"} <= arguments.keys():
    policy_BT, ratio_BT = (
      to_array(arguments[name])
      for name in ("policy_logprob_BT", "log_ratio_BT")
    )  # the sampler's probability is below 1
    arguments["policy_logprob_BT"] = _plain(
      np.minimum(policy_BT, ratio_BT - 0.1)
    )
  return arguments


def _plain(x: np.ndarray) -> list:
  """Returns the array as `to_array` reads it."""
  text = json.dumps(x.tolist()).replace("NaN", "null")
  return json.loads(text, parse_constant=str)


def few(module: str) -> list[dict[str, Any]]:
  """Returns the first two cases of each function of a module."""
  by_function: dict[str, list] = {}
  for block in sections()[module]:
    by_function.setdefault(block["function"], []).append(block)
  return [block for blocks in by_function.values() for block in blocks[:2]]
