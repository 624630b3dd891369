"""How long a program takes at least, and what it waits for.

Three things take time: products, the chip's memory, the links between chips.
If they overlap perfectly, a step takes as long as the longest; if they do not
overlap at all, their sum. Real steps lie between.

Links: a group of chips moves data along every axis of the grid that it spans,
both ways round where the axis is a ring, one way where it ends. Chips are taken
where the mesh puts them; links that two groups share are not shared out.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from launch.planning.chips import Chip, Slice
from launch.planning.collectives import Collective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """Seconds of one run of a program, per chip."""

  compute_s: float
  memory_s: float
  links_s: float

  @property
  def step_s(self) -> float:
    """The longest of the three: the bound."""
    return max(self.compute_s, self.memory_s, self.links_s)

  @property
  def in_turn_s(self) -> float:
    """If nothing overlapped."""
    return self.compute_s + self.memory_s + self.links_s

  @property
  def binds(self) -> str:
    """What the bound is made by."""
    parts: Mapping[str, float] = {
      "compute": self.compute_s,
      "memory": self.memory_s,
      "links": self.links_s,
    }
    return max(parts, key=lambda name: parts[name])


def roofline(
  chip: Chip,
  *,
  executed_flops: float,
  moved: float,
  exchanges: Sequence[Collective],
  slice_: Slice,
  coordinates: Sequence[tuple[int, ...]],
) -> Roofline:
  """`executed_flops` and `moved` are of one chip."""
  return Roofline(
    compute_s=executed_flops / chip.flops,
    memory_s=moved / chip.memory_bandwidth,
    links_s=sum(
      one.total_bytes / bandwidth(slice_, [coordinates[n] for n in one.group])
      for one in exchanges
    ),
  )


def bandwidth(slice_: Slice, members: Sequence[tuple[int, ...]]) -> float:
  """Bytes per second into each chip of a group, over the axes it spans."""
  links = 0
  for axis, (size, wraps) in enumerate(
    zip(slice_.dims, slice_.wraps, strict=True)
  ):
    spanned = len({place[axis] for place in members})
    if spanned > 1:
      links += 2 if wraps and spanned == size else 1
  return max(links, 1) * slice_.chip.link_bandwidth
