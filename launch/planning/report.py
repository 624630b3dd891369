"""A plan as tables for people, and as JSON values for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.planning.advice import Advice
from launch.planning.chips import GIB, RESERVE
from launch.planning.compiler.collectives import KINDS
from launch.planning.formulas import Estimate, shape_name
from launch.planning.step import StepTime
from launch.planning.study import Judgement


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


def show_meshes(
  console: Console, found: Sequence[Estimate], own: Mapping[str, int]
) -> None:
  """Prints meshes by arithmetic, the most promising first."""
  table = make_table(
    "Meshes by arithmetic",
    *("mesh", "rows", "fits", "GiB", "ms", "binds", "tokens/s"),
  )
  for one in found:
    bound = one.roofline
    table.add_row(
      shape_name(one.mesh) + " (config)" * (one.mesh == own),
      str(one.rows),
      "yes" if one.fits else "no",
      f"{one.num_bytes / GIB:.1f}",
      f"{bound.step_s * 1e3:,.0f}",
      bound.binds,
      f"{one.tokens / bound.step_s:,.0f}",
    )
  console.print(table)


def show_step(console: Console, step: StepTime, share: float) -> None:
  """Prints the seconds of a step, and who waits for whom."""
  table = make_table(f"One step, at {share:.0%} of the bounds, s", "", "")
  for name, seconds in (*step.training.items(), *step.generation.items()):
    table.add_row(name, f"{seconds:,.3g}")
  table.add_section()
  table.add_row("training", f"{step.training_s:,.3g}")
  table.add_row("generation", f"{step.generation_s:,.3g}")
  table.add_row("step", f"{step.step_s:,.3g}")
  rate = f"{step.tokens / step.step_s:,.0f}"
  table.add_row("tokens of trajectories/s", rate)
  console.print(table)
  console.print(step.verdict)


def show_advice(console: Console, found: Sequence[Advice]) -> None:
  """Prints changes as flags to be copied."""
  for one in found:
    line = f"by arithmetic: {one.flags} ({one.effect})"
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def as_json(
  judged: Sequence[Judgement], advice: Sequence[Advice]
) -> dict[str, Any]:
  """Returns all results, in bytes, seconds and operations."""
  return {
    "programs": {j.name: _program(j) for j in judged},
    "advice": [{"flags": a.flags, "effect": a.effect} for a in advice],
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
