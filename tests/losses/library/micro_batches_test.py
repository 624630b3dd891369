"""Sums over micro-batches equal the results of the whole batch.

Each measure is taken of several drawn batches in one, of these as its parts,
and of the parts in a scan. One part has no trained token.
"""

import functools
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax import losses
from tests.golden.vectors import sections
from tests.losses.compiled import compiled
from tests.losses.library.cases import IN_HASTE, arrays_of, call, few

SUMS = (
  losses.Mean,
  losses.RatioMoments,
  losses.ExplainedVariance,
  losses.Extremes,
  losses.TaskMoments,
)
PER_TASK = {"share_I"}  # all other arrays have the rows of a batch first
TOLERANCE = 2e-6


def parts_of(block: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the arrays of four batches of one shape."""
  parts = [arrays_of(block, seed) for seed in range(1, 5)]
  parts[2] = {
    name: x & False if x.dtype == bool else x for name, x in parts[2].items()
  }
  if block["function"] == "measure_tasks":
    parts[2]["weight"] = 0 * parts[2]["weight"]
  return parts


def adds_up(block: Mapping[str, Any]) -> bool:
  """Returns true for sums over rows; a score of pairs has no rows to cut."""
  arrays = arrays_of(block)
  if any(name.endswith("_NN") for name in arrays):
    return False
  if not arrays or any(isinstance(x, SUMS) for x in arrays.values()):
    return False
  result = jax.eval_shape(lambda x: call(block, x)[0], arrays)
  results = result.values() if isinstance(result, dict) else [result]
  return all(isinstance(x, SUMS) for x in results)


def add(left: Any, right: Any) -> Any:
  if isinstance(left, Mapping):
    return {name: left[name] + right[name] for name in left}
  return left + right


def is_sum(x: Any) -> bool:
  return isinstance(x, losses.Mean | losses.ExplainedVariance)


def numbers(measured: Any) -> Any:
  """Returns values of means, and the fields of everything else."""
  return jax.tree.map(
    lambda x: x.value() if is_sum(x) else x, measured, is_leaf=is_sum
  )


MODULES = (
  "advantages/normalisation",
  "agentrl",
  "diagnostics",
  "reductions",
  "value",
)


def three_ways(block: Mapping[str, Any], parts: list[dict[str, Any]]) -> Any:
  """Returns results and gradients: of the whole, of parts, and in a scan."""
  constants = {name: x for name, x in parts[0].items() if name in PER_TASK}

  def measure(arrays):
    return call(block, arrays)

  def step(total, part):
    measured, slope = measure(part)
    return add(total, measured), (measured, slope)

  scanned, (measures, slopes) = jax.lax.scan(
    step,
    measure(parts[2])[0],  # of nothing
    jax.tree.map(lambda *x: jnp.stack(x), *parts),
  )
  whole = jax.tree.map(lambda *x: jnp.concatenate(x), *parts) | constants
  whole, slope = measure(whole)
  in_parts = functools.reduce(
    add,
    (jax.tree.map(lambda x, i=i: x[i], measures) for i in range(len(parts))),
  )
  slopes = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), slopes)
  return (
    (numbers(whole), slope),
    (numbers(in_parts), slopes),
    numbers(scanned),
  )


class MicroBatchesTest(parameterized.TestCase):
  @parameterized.parameters(*MODULES)
  def test_measures_and_gradients_add_up(self, module):
    close = functools.partial(
      chex.assert_trees_all_close, atol=TOLERANCE, rtol=TOLERANCE
    )
    for block in filter(adds_up, few(module)):
      program = jax.jit(
        functools.partial(three_ways, block), compiler_options=IN_HASTE
      )
      whole, in_parts, in_a_scan = program(parts_of(block))
      with self.subTest(block["function"], about=block["about"]):
        close(in_parts, whole)
        close(in_a_scan, whole[0])

  def test_every_module_with_sums_is_among_them(self):
    modules = {name for name in sections() if any(map(adds_up, few(name)))}
    self.assertEqual(modules, set(MODULES))

  @parameterized.parameters(
    {}, {"center": False}, {"scale": False}, {"epsilon": 0.1}
  )
  def test_tasks_are_normalised_by_the_moments_of_all_parts(self, **settings):
    (block, *_) = (
      b
      for b in sections()["advantages/normalisation"]
      if b["function"] == "task_normalise"
    )
    names = ("advantage_BT", "task_BT", "mask_BT")
    parts = [[part[name] for name in names] for part in parts_of(block)]
    num_tasks = block["arguments"]["num_tasks"]
    measure = compiled(losses.measure_tasks)
    moments = functools.reduce(
      jax.jit(add), (measure(*part, num_tasks=num_tasks) for part in parts)
    )
    in_parts_BT = [
      compiled(losses.normalise_by_moments)(*part, moments, **settings)
      for part in parts
    ]
    whole_BT = compiled(losses.task_normalise)(
      *map(np.concatenate, zip(*parts, strict=True)),
      num_tasks=num_tasks,
      **settings,
    )
    np.testing.assert_allclose(
      np.concatenate(in_parts_BT), whole_BT, rtol=0, atol=TOLERANCE
    )
