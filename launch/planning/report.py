"""A plan as tables for people, and as JSON values for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.planning.advice import Advice, Adviser
from launch.planning.chips import GIB
from launch.planning.collectives import KINDS
from launch.planning.largest_batch import Largest
from launch.planning.search import Candidate, shape_name
from launch.planning.study import RESERVE, Judgement


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
  table = Table(title="Meshes by the bound of their gradient")
  for name in ("mesh", "rows", "fits", "ms", "binds", "tokens/s", "GiB left"):
    table.add_column(name, justify="right" if name != "mesh" else "left")
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


def show_advice(
  console: Console, found: Sequence[Advice], adviser: Adviser
) -> None:
  """Prints changes that were checked, or how many were tried in vain."""
  for one in found:
    console.print(
      f"  {one.flags}: {one.effect} ({one.checked})",
      soft_wrap=True,  # to be copied
      markup=False,
      highlight=False,
    )
  if not found and (adviser.num_compiled or adviser.num_excluded):
    console.print(
      f"no change that was tried fits: {adviser.num_excluded} are too large by "
      f"arithmetic, {adviser.num_compiled} were compiled"
      + ("; --advice sets how many are" if adviser.is_spent else "")
    )


def as_json(
  judged: Sequence[Judgement],
  largest: Sequence[Largest],
  ranked: Sequence[Candidate],
  advice: Sequence[Advice],
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
  table = Table(
    title="Memory of a chip, GiB",
    caption=f"{RESERVE:.0%} are kept back; 'beside': data of no program",
  )
  table.add_column("")
  for j in judged:
    table.add_column(f"{j.name}\n{j.slice_.name}", justify="right")
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
  table = Table(
    title="One run of a program",
    caption="bound: the longest of these, where compute and memory wait for "
    "synchronous links; in turn: their sum",
  )
  table.add_column("")
  for j in judged:
    table.add_column(j.name, justify="right")
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
