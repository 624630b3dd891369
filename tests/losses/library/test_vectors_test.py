"""The library against its test vectors, and the generator of these."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from tests.golden import make_test_vectors
from tests.golden.vectors import FILE, sections, to_array

TYPES = {
  frozenset(field.name for field in dataclasses.fields(kind)): kind
  for kind in (losses.Mean, losses.TaskMoments)
}
NUM_SEEDS = 4
# Some 90 small programs, each run once: most of the time goes to compiling.
IN_HASTE = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}


def to_argument(name: str, value: Any) -> Any:
  if name == "estimator":
    return getattr(losses, value)
  if isinstance(value, list):
    return jnp.asarray(to_array(value))
  if isinstance(value, Mapping):
    fields = {field: jnp.asarray(x) for field, x in value.items()}
    return TYPES[frozenset(fields)](**fields)
  return value


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


def _arrays(block: Mapping[str, Any]) -> dict[str, Any]:
  return {
    name: to_argument(name, value)
    for name, value in block["arguments"].items()
    if isinstance(value, list | Mapping)
  }


def vary(block: Mapping[str, Any], seed: int) -> dict[str, Any]:
  """Returns a case with other numbers, and what the loops compute of them.

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
  return make_test_vectors.computed(block | {"arguments": arguments})


def _plain(x: np.ndarray) -> list:
  """Returns the array as `to_array` reads it."""
  text = json.dumps(x.tolist()).replace("NaN", "null")
  return json.loads(text, parse_constant=str)


class TestVectorsTest(parameterized.TestCase):
  def test_file_is_what_the_script_writes(self):
    self.assertEqual(FILE.read_text(encoding="utf-8"), make_test_vectors.text())

  def test_every_function_has_a_case(self):
    functions = {
      name
      for name in losses.__all__
      if not isinstance(getattr(losses, name), type)
    }
    with_case = {
      block["function"]: module
      for module, blocks in sections().items()
      for block in blocks
    }
    self.assertEqual(functions, set(with_case))
    for name, module in with_case.items():
      with self.subTest(name):
        defined_in = getattr(losses, name).__module__
        path = module.replace("/", ".")
        self.assertEqual(defined_in, f"agentrl_jax.losses.{path}")

  @parameterized.parameters(*sections())
  @pytest.mark.slow
  def test_library_agrees(self, module):
    blocks = sections()[module]
    results = compiled(blocks)([_arrays(block) for block in blocks])
    self.check(blocks, results, tolerance=1e-6, slope_tolerance=2e-6)

  @parameterized.parameters(*sections())
  def test_library_agrees_in_float64(self, module):
    """On the numbers of the file, and on others from the same loops."""
    blocks = sections()[module]
    with jax.enable_x64(True):
      program = compiled(blocks)
      for seed in range(NUM_SEEDS):
        drawn = [vary(block, seed) for block in blocks] if seed else blocks
        results = program([_arrays(block) for block in drawn])
        self.check(drawn, results, tolerance=1e-8, slope_tolerance=1e-7)

  def check(self, blocks, results, *, tolerance, slope_tolerance):
    for i, (block, (result, slopes)) in enumerate(
      zip(blocks, results, strict=True)
    ):
      with self.subTest(f"{block['function']}, case {i} of its section"):
        self.compare(result, block["returns"], tolerance)
        for name, expected in block.get("gradient", {}).items():
          self.compare(slopes[name], expected, slope_tolerance)

  def compare(self, result, expected, tolerance):
    if isinstance(expected, Mapping):
      for place, (name, part) in enumerate(expected.items()):
        with self.subTest(name):
          self.compare(part_of(result, name, place), part, tolerance)
      return
    expected = to_array(expected if isinstance(expected, list) else [expected])
    if not np.ndim(result):
      expected = expected[0]
    self.assertEqual(np.shape(result), np.shape(expected))
    self.assertEqual(result.dtype == bool, expected.dtype == bool)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
