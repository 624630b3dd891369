"""Layouts of an update: the length and number of its rows, and the mesh.

Contexts grow while an agent learns. What long ones need, short ones pay for:
where a kernel computes whole rows, a row of 32,768 tokens costs a short
trajectory as much attention as a long one, and a mesh that splits rows or heads
over many devices moves more data for each token. So a run may have several
layouts, one for each range of lengths, as EARL (arXiv:2510.05943) chooses
parallelism from a table that was measured before:

  2048 tokens 8 rows fsdp=8
  32768 tokens 1 rows fsdp=2 sequence=4

The longest is that of `train.row_length`, `train.micro_batch` and `mesh`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.sharding import MESH_AXES

_KEY = "train.layouts"
_LINE = re.compile(
  r"(?P<tokens>[1-9]\d*) tokens? (?P<rows>[1-9]\d*) rows?"
  r"(?P<axes>(?: [a-z]+=[1-9]\d*)*)"
)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Rows of a micro-batch, and the mesh that computes them."""

  row_length: int  # tokens
  micro_batch: int  # rows
  mesh: Mapping[str, int]  # size of each of `MESH_AXES`

  @property
  def text(self) -> str:
    """A line of `train.layouts` that reads as this layout."""
    axes = "".join(f" {a}={n}" for a, n in self.mesh.items() if n > 1)
    return f"{self.row_length} tokens {self.micro_batch} rows{axes}"


def read_layouts(lines: Sequence[str], last: Layout) -> tuple[Layout, ...]:
  """Reads lines of `train.layouts`; returns all layouts, from short to long.

  `last` is the config's own. A line that names no axis has its mesh; axes that
  a line does not name are 1. Raises `ConfigError`.
  """
  if isinstance(lines, str):
    raise ConfigError(
      f"{_KEY}={lines!r} is a text; write a tuple of them, as ({lines!r},)"
    )
  layouts = (*(_read(line, last) for line in lines), last)
  lengths = [layout.row_length for layout in layouts]
  if lengths != sorted(set(lengths)):
    raise ConfigError(
      f"{_KEY}={tuple(lines)!r}: the tokens must grow from line to line, and "
      f"stay below train.row_length={last.row_length}, which is the longest"
    )
  return layouts


class LayoutChooser:
  """Chooses the layout of each update.

  An update has the shortest rows that hold its longest line of tokens. The mesh
  changes rarely, since the whole state moves: at once where no layout of the
  present mesh holds a line, else at a checkpoint, to that of the shortest
  layout that held every line since the last one. A run begins on the config's
  mesh. All this depends on the trained lines and on `snapshot` alone, so that a
  resumed run has the same layouts.
  """

  def __init__(self, layouts: Sequence[Layout]):
    """`layouts` are from short to long, as `read_layouts` returns them."""
    self._layouts = tuple(layouts)
    self._mesh = self._layouts[-1].mesh
    self._longest = 0  # tokens, since the last checkpoint

  @property
  def mesh(self) -> Mapping[str, int]:
    """The axes of the present mesh."""
    return self._mesh

  def choose(self, longest: int) -> Layout:
    """Returns the layout of an update whose longest line has so many tokens.

    One that no layout holds gets the longest: to pack it is refused.
    """
    self._longest = max(self._longest, longest)
    holding = self._holding(longest)
    here = [layout for layout in holding if layout.mesh == self._mesh]
    chosen = (here or holding)[0]
    self._mesh = chosen.mesh
    return chosen

  def begin_interval(self) -> None:
    """Chooses the mesh anew, at a checkpoint."""
    if self._longest:
      self._mesh = self._holding(self._longest)[0].mesh
    self._longest = 0

  def snapshot(self) -> dict[str, Any]:
    """Returns the state that a resumed run needs, as JSON values."""
    return {"mesh": dict(self._mesh), "longest": self._longest}

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a `snapshot`; an empty one starts afresh."""
    if snapshot:
      self._mesh, self._longest = snapshot["mesh"], snapshot["longest"]

  def _holding(self, longest: int) -> list[Layout]:
    holding = [x for x in self._layouts if x.row_length >= longest]
    return holding or [self._layouts[-1]]


def _read(line: str, last: Layout) -> Layout:
  match = _LINE.fullmatch(line)
  if match is None:
    raise ConfigError(
      f"{_KEY} has {line!r}; write '2048 tokens 8 rows', with the axes of a "
      f"mesh of its own behind if it has one: '2048 tokens 8 rows fsdp=8'. "
      f"Axes are {', '.join(MESH_AXES)}"
    )
  sizes = dict(axis.split("=") for axis in match["axes"].split())
  unknown = sorted(set(sizes) - set(MESH_AXES))
  if unknown:
    raise ConfigError(
      f"{_KEY} has {line!r}; {', '.join(unknown)} is no axis of a mesh: there "
      f"are {', '.join(MESH_AXES)}"
    )
  mesh = {a: int(sizes.get(a, 1)) for a in MESH_AXES} if sizes else last.mesh
  return Layout(int(match["tokens"]), int(match["rows"]), mesh)
