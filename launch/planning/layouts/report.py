"""Plans of lengths as tables, as flags of a run, and as JSON values."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl_jax.train.config.layout import Layout
from launch.planning.chips import GIB
from launch.planning.layouts.length_plans import (
  Crossover,
  LengthPlan,
  crossovers,
)
from launch.planning.search import Candidate, shape_name


def show(console: Console, plans: Sequence[LengthPlan]) -> None:
  """Prints the best mesh of each length, all compiled ones, and the config."""
  console.print(_best_table(plans))
  console.print(_speed_table(plans))
  for line in changes(plans):
    console.print(line, highlight=False)
  if lines := overrides(plans):
    console.print(
      lines,
      soft_wrap=True,  # to be copied
      markup=False,
      highlight=False,
    )


def overrides(plans: Sequence[LengthPlan]) -> str:
  """Returns the flags that give a run the best layouts; "" if none fits.

  The longest is the config's own, the others are `train.layouts`.
  """
  found = [
    Layout(plan.length, plan.best.rows, plan.best.mesh)
    for plan in plans
    if plan.best is not None
  ]
  if not found:
    return ""
  *shorter, own = found
  lines = tuple(layout.text for layout in shorter)
  values = {
    "train.row_length": own.row_length,
    "train.micro_batch": own.micro_batch,
    **{f"mesh.{axis}": size for axis, size in own.mesh.items()},
  }
  flags = [f"--config.{key}={value}" for key, value in values.items()]
  return " ".join([*flags, f'--config.train.layouts="{lines}"'])


def changes(plans: Sequence[LengthPlan]) -> list[str]:
  """A sentence for each crossover, or one that says there is none."""
  found = crossovers(plans)
  if found:
    return [_change(one) for one in found]
  num_fitting = sum(plan.best is not None for plan in plans)
  if num_fitting < 2:
    return []
  return [f"one mesh is best at all {num_fitting} lengths that fit"]


def _change(one: Crossover) -> str:
  before, after = one.before, one.after
  assert before.best is not None
  assert after.best is not None
  old, new = shape_name(before.best.mesh), shape_name(after.best.mesh)
  sentence = (
    f"between {before.length} and {after.length} tokens the best mesh changes "
    f"from {old} to {new}: at {after.length} "
  )
  if one.gain is None:
    return sentence + f"{old} does not fit"
  return sentence + f"it is {one.gain:.0%} faster"


def as_json(plans: Sequence[LengthPlan]) -> dict[str, Any]:
  """Returns lengths, meshes, and the line of the config."""
  return {
    "lengths": [
      {
        "length": plan.length,
        "best": plan.best and dict(plan.best.mesh),
        "rows": plan.best and plan.best.rows,
        "num_excluded": plan.num_excluded,
        "num_left": plan.num_left,
        "meshes": [_mesh(one) for one in plan.compiled],
      }
      for plan in plans
    ],
    "changes": changes(plans),
    "overrides": overrides(plans),
  }


def _mesh(one: Candidate) -> dict[str, Any]:
  assert one.judged is not None
  bound = one.judged.roofline
  return {
    "mesh": dict(one.mesh),
    "rows": one.rows,
    "fits": one.judged.fits,
    "step_s": bound and bound.step_s,
    "in_turn_s": bound and bound.in_turn_s,
    "binds": bound and bound.binds,
    "tokens_per_s": one.judged.tokens_per_s,
    "left_bytes": one.judged.left,
    "compile_s": one.judged.compiled.seconds,
    **({"failure": one.judged.failure} if one.judged.failure else {}),
  }


def _best_table(plans: Sequence[LengthPlan]) -> Table:
  table = Table(
    title="Best mesh by the length of a row",
    caption="at the bound of the gradient of a micro-batch",
  )
  table.add_column("tokens of a row", justify="right")
  table.add_column("mesh")
  for name in ("rows", "tokens", "ms", "binds", "tokens/s", "GiB left"):
    table.add_column(name, justify="right")
  for plan in plans:
    if plan.best is None:
      table.add_row(f"{plan.length:,}", "none fits", *["-"] * 6)
      continue
    one = plan.best
    assert one.judged is not None
    assert one.judged.roofline is not None
    table.add_row(
      f"{plan.length:,}",
      shape_name(one.mesh) + " (config)" * one.is_own,
      str(one.rows),
      f"{one.judged.tokens:,}",
      f"{one.judged.roofline.step_s * 1e3:,.1f}",
      one.judged.roofline.binds,
      f"{one.judged.tokens_per_s:,.0f}",
      f"{one.judged.left / GIB:.1f}",
    )
  return table


def _speed_table(plans: Sequence[LengthPlan]) -> Table:
  """Tokens per second of each mesh that was compiled, by length."""
  table = Table(
    title="Tokens/s at the bound",
    caption="no: compiled, and does not fit; died: the compiler did; -: not "
    "compiled",
  )
  table.add_column("mesh")
  for plan in plans:
    table.add_column(f"{plan.length:,}", justify="right")
  names = {shape_name(c.mesh): c.mesh for plan in plans for c in plan.compiled}
  for name, mesh in names.items():
    table.add_row(name, *(_speed(plan.of_mesh(mesh)) for plan in plans))
  return table


def _speed(one: Candidate | None) -> str:
  if one is None or one.judged is None:
    return "-"
  if one.judged.failure:
    return "died"
  return f"{one.judged.tokens_per_s:,.0f}" if one.judged.fits else "no"
