"""A plan as tables for people, and as JSON values for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl_jax.train.config.layout import Layout
from launch.planning.advice.adviser import Advice, Adviser, LeftOut
from launch.planning.chips import GIB
from launch.planning.collectives import KINDS
from launch.planning.length_plans import Crossover, LengthPlan, crossovers
from launch.planning.search import Candidate, Largest, shape_name
from launch.planning.study import RESERVE, Judgement


def make_table(title: str, *names: str, caption: str | None = None) -> Table:
  """Makes a table of these columns: names are on the left, figures right."""
  table = Table(title=title, caption=caption)
  for name in names:
    table.add_column(name, justify="left" if name in ("", "mesh") else "right")
  return table


def show(
  console: Console,
  judged: Sequence[Judgement],
  due: Mapping[str, float] | None = None,
) -> None:
  """Prints two tables: memory of each program, and its speed limits.

  `due` are the bytes that a chip has to receive by formula, of programs for
  which there is one.
  """
  console.print(_memory_table(judged))
  console.print(_speed_table(judged, due or {}))


def show_largest(console: Console, found: Sequence[Largest]) -> None:
  """Prints the largest compiled size that fits."""
  for one in found:
    if not one.size:
      console.print(
        f"{one.setting}: {one.judged.failure or 'not even the smallest fits'}"
      )
      continue
    console.print(
      f"{one.setting}: {one.size} is the most that fits "
      f"({one.judged.left / GIB:.1f} GiB of a chip left)"
    )


def show_search(console: Console, ranked: Sequence[Candidate]) -> None:
  """Prints meshes, fastest first."""
  table = make_table(
    "Meshes by the bound of their gradient",
    "mesh",
    "rows",
    "fits",
    "ms",
    "binds",
    "tokens/s",
    "GiB left",
  )
  for one in ranked:
    assert one.judged is not None
    bound = one.judged.roofline
    table.add_row(
      shape_name(one.mesh) + " (config)" * one.is_own,
      str(one.rows),
      "died" if one.judged.failure else "yes" if one.judged.fits else "no",
      f"{bound.step_s * 1e3:,.0f}" if bound else "-",
      bound.binds if bound else "-",
      f"{one.judged.tokens_per_s:,.0f}",
      "-" if one.judged.failure else f"{one.judged.left / GIB:.1f}",
    )
  console.print(table)
  for failure in dict.fromkeys(c.judged.failure for c in ranked if c.judged):
    if failure:
      console.print(failure, soft_wrap=True)


def _print_flags(console: Console, line: str) -> None:
  """Prints a line to be copied."""
  console.print(line, soft_wrap=True, markup=False, highlight=False)


def show_advice(
  console: Console, found: Sequence[Advice], adviser: Adviser
) -> None:
  """Prints changes that were checked, or how many were tried in vain.

  Then those for which no time was left.
  """
  for one in found:
    _print_flags(console, f"  {one.flags}: {one.effect} ({one.checked})")
  if not found and (adviser.num_compiled or adviser.num_excluded):
    console.print(
      f"no change that was tried fits: {adviser.num_excluded} are too large by "
      f"arithmetic, {adviser.num_compiled} were compiled"
    )
  if adviser.left_out:
    console.print(f"advice had --seconds={adviser.seconds:g} to compile in:")
  for change in adviser.left_out:
    _print_flags(console, f"  {change.sentence}")


def as_json(
  judged: Sequence[Judgement],
  largest: Sequence[Largest],
  ranked: Sequence[Candidate],
  advice: Sequence[Advice],
  left_out: Sequence[LeftOut] = (),
) -> dict[str, Any]:
  """Returns all results, in bytes, seconds and operations."""
  return {
    "programs": {j.name: _program(j) for j in judged},
    "largest": {one.setting: one.size for one in largest},
    "meshes": [
      {
        "mesh": dict(one.mesh),
        "rows": one.rows,
        "gradient": one.judged and _program(one.judged),
      }
      for one in ranked
    ],
    "advice": [
      {
        "flags": one.flags,
        "effect": one.effect,
        "left_bytes": one.left,
        "roles": list(one.roles),
      }
      for one in advice
    ],
    "advice_left_out": [vars(one) for one in left_out],
  }


def _program(j: Judgement) -> dict[str, Any]:
  memory, bound = j.compiled.memory, j.roofline
  return {
    "slice": j.slice_.name,
    "fits": j.fits,
    "memory_bytes": memory and {**vars(memory), "total": memory.total},
    "wanted_bytes": j.wanted,
    "beside_bytes": dict(j.beside),
    "left_bytes": j.left,
    "needed_flops": j.flops.needed,
    "executed_flops": j.flops.executed,
    "moved_bytes": j.compiled.moved,
    "received_bytes": j.received,
    "received_between_slices_bytes": j.received_between_slices,
    "roofline_s": bound and {**vars(bound), "step_s": bound.step_s},
    "binds": bound and bound.binds,
    "tokens": j.tokens,
    "answers": j.answers,
    "load": j.load
    and {
      "computed_tokens": j.load.computed,
      "trajectory_tokens": j.load.of_trajectories,
      "shared": j.load.shared,
      "needed_flops_per_trajectory_token": j.flops.needed
      / j.load.of_trajectories,
      "trajectory_tokens_per_s": j.trajectory_tokens_per_s,
    },
    "tokens_per_s": j.tokens_per_s,
    "tokens_per_chip_hour": j.tokens_per_chip_hour,
    "compile_s": j.compiled.seconds,
    **({"failure": j.failure} if j.failure else {}),
  }


def _memory_table(judged: Sequence[Judgement]) -> Table:
  table = make_table(
    "Memory of a chip, GiB",
    "",
    *(f"{j.name}\n{j.slice_.name}" for j in judged),
    caption=f"{RESERVE:.0%} are kept back; 'beside': data of no program",
  )
  kinds: Mapping[str, str] = {
    "arguments": "arguments",
    "outputs": "outputs",
    "aliased": "- in place of arguments",
    "temporaries": "temporaries",
    "code": "code",
  }
  for kind, title in kinds.items():
    table.add_row(
      title,
      *(
        f"{getattr(j.compiled.memory, kind) / GIB:.2f}"
        if j.compiled.memory
        else "died"
        if j.failure
        else "refused"
        for j in judged
      ),
    )
  for name in dict.fromkeys(name for j in judged for name in j.beside):
    sizes = [j.beside.get(name) for j in judged]
    cells = ["" if s is None else f"{s / GIB:.2f}" for s in sizes]
    table.add_row(f"beside: {name}", *cells)
  table.add_section()
  wanted = ["-" if j.failure else f"{j.wanted / GIB:.2f}" for j in judged]
  table.add_row("total", *wanted)
  table.add_row("of", *(f"{j.slice_.chip.memory / GIB:.2f}" for j in judged))
  left = ["-" if j.failure else f"{j.left / GIB:.2f}" for j in judged]
  table.add_row("left", *left)
  table.add_row("fits", *("yes" if j.fits else "NO" for j in judged))
  return table


def _speed_table(
  judged: Sequence[Judgement], due: Mapping[str, float]
) -> Table:
  table = make_table(
    "One run of a program",
    "",
    *(j.name for j in judged),
    caption="bound: the longest of these, where compute and memory wait for "
    "synchronous links; in turn: their sum",
  )
  rows: dict[str, list[str]] = {
    "answers at once": [f"{j.answers:,}" if j.answers else "-" for j in judged],
    "tokens": [f"{j.tokens:,}" if j.tokens else "-" for j in judged],
    **_load_rows(judged),
    "TFLOP needed, all chips": [
      f"{j.flops.needed / 1e12:,.1f}" for j in judged
    ],
    "TFLOP executed": [f"{j.flops.executed / 1e12:,.1f}" for j in judged],
  }
  spans_slices = any(j.slice_.num_slices > 1 for j in judged)
  rows |= _exchange_rows(judged, due, spans_slices=spans_slices)
  rows["GiB moved in memory, per chip"] = [
    f"{j.compiled.moved / GIB:.1f}" for j in judged
  ]
  limits = ["compute", "memory", "links", "waiting"]
  names = {"waiting": "links, synchronous", "step": "bound"}
  for part in (*limits, *["network"] * spans_slices, "step", "in_turn"):
    name = names.get(part, part.replace("_", " "))
    rows[f"ms, {name}"] = [
      f"{getattr(j.roofline, f'{part}_s') * 1e3:,.2f}" if j.roofline else "-"
      for j in judged
    ]
  rows["binds"] = [j.roofline.binds if j.roofline else "-" for j in judged]
  rows["tokens/s at the bound"] = [f"{j.tokens_per_s:,.0f}" for j in judged]
  if _shows_load(judged):
    rows["tokens of trajectories/s"] = [
      f"{j.trajectory_tokens_per_s:,.0f}" if j.load else "-" for j in judged
    ]
  rows["million tokens per chip-hour"] = [
    f"{j.tokens_per_chip_hour / 1e6:,.2f}" for j in judged
  ]
  rows["s to compile"] = [f"{j.compiled.seconds:.0f}" for j in judged]
  for name, cells in rows.items():
    table.add_row(name, *cells)
  return table


def _exchange_rows(
  judged: Sequence[Judgement], due: Mapping[str, float], *, spans_slices: bool
) -> dict[str, list[str]]:
  """Bytes between chips, by kind, beside those of the formula."""
  rows = {
    f"GiB by {kind}, per chip": [
      f"{j.received.get(kind, 0) / GIB:.3f}" for j in judged
    ]
    for kind in KINDS
    if any(kind in j.received for j in judged)
  }
  if due:
    rows["GiB by formula, all kinds"] = [
      f"{due[j.name] / GIB:.3f}" if j.name in due else "-" for j in judged
    ]
  if spans_slices:
    rows["GiB of these between slices"] = [
      f"{j.received_between_slices / GIB:.3f}" for j in judged
    ]
  return rows


def _shows_load(judged: Sequence[Judgement]) -> bool:
  """Says if it is known what attempts share."""
  return any(j.load and j.load.attempts for j in judged)


def _load_rows(judged: Sequence[Judgement]) -> dict[str, list[str]]:
  """Tokens without padding, and those of trajectories, where known."""
  if not _shows_load(judged):
    return {}
  loads = [j.load for j in judged]
  gflop = [j.flops.needed / 1e9 for j in judged]
  return {
    "tokens computed, without padding": [
      f"{load.computed:,.0f}" if load else "-" for load in loads
    ],
    "tokens of trajectories": [
      f"{load.of_trajectories:,.0f}" if load else "-" for load in loads
    ],
    "% of these shared": [
      f"{100 * load.shared:.1f}" if load else "-" for load in loads
    ],
    "GFLOP needed per token of these": [
      f"{needed / load.of_trajectories:,.2f}" if load else "-"
      for needed, load in zip(gflop, loads, strict=True)
    ],
  }


def show_lengths(console: Console, plans: Sequence[LengthPlan]) -> None:
  """Prints the best mesh of each length, all compiled ones, and the config."""
  console.print(_best_table(plans))
  console.print(_length_speed_table(plans))
  for line in changes(plans):
    console.print(line, highlight=False)
  if flags := overrides(plans):
    _print_flags(console, flags)


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


def lengths_as_json(plans: Sequence[LengthPlan]) -> dict[str, Any]:
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
  table = make_table(
    "Best mesh by the length of a row",
    "tokens of a row",
    "mesh",
    "rows",
    "tokens",
    "ms",
    "binds",
    "tokens/s",
    "GiB left",
    caption="at the bound of the gradient of a micro-batch",
  )
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


def _length_speed_table(plans: Sequence[LengthPlan]) -> Table:
  """Tokens per second of each mesh that was compiled, by length."""
  table = make_table(
    "Tokens/s at the bound",
    "mesh",
    *(f"{plan.length:,}" for plan in plans),
    caption="no: compiled, and does not fit; died: the compiler did; -: not "
    "compiled",
  )
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
