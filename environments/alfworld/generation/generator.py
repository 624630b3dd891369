"""Makes games out of nothing: content is a pure function of (split, index).

The line between the splits is drawn through rooms, not seeds: a game is drawn
again until its room and its task belong to the split, so train and test share
neither. Every game can be won, and none is won from the start.
"""

import dataclasses
import random
from collections.abc import Sequence

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import Game
from environments.alfworld.games.tasks import (
  ABLE_FOR,
  LOOK,
  TASK_TYPES,
  TOOL_FOR,
  WORDS,
  Wanted,
  goal_of,
)
from environments.alfworld.generation.catalogue import (
  FITS,
  ROOM_KINDS,
  TRAITS_OF,
)
from environments.alfworld.generation.room import Room, draw_room


@dataclasses.dataclass(frozen=True)
class Generated:
  """A game, and what it asks for."""

  game: Game
  wanted: Wanted
  room: Room
  room_kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
  """What is asked for, and how large the rooms are (bounds inclusive)."""

  task_types: Sequence[str] = TASK_TYPES
  num_receptacles: tuple[int, int] = (8, 32)
  num_things: tuple[int, int] = (10, 48)

  def __post_init__(self) -> None:
    unknown = sorted(set(self.task_types) - set(TASK_TYPES))
    if unknown or not self.task_types or isinstance(self.task_types, str):
      raise ConfigError(
        f"ALFWorld's task_types are {self.task_types!r}; allowed is a list of "
        f"one or more of {', '.join(TASK_TYPES)}"
      )
    _require_bounds("num_receptacles", self.num_receptacles, least=4, most=60)
    _require_bounds("num_things", self.num_things, least=4, most=100)

  def generate(self, split: str, index: int) -> Generated:
    """The game that belongs to (split, index), and to no other split."""
    rng = random.Random(f"alfworld/{split}/{index}")
    kind = rng.choice(self.task_types)
    while True:  # a room falls on the right side with probability 1/2
      room_kind = rng.choice(_rooms_for(kind))
      room = self._draw_room(rng, room_kind)
      wanted = _draw_wanted(rng, kind, room)
      if wanted is None:
        continue
      room = room.prepared(rng, wanted)
      if split_of(room.canonical) != split:
        continue
      task = rng.choice(WORDS[kind]).format(o=wanted.thing, r=wanted.target)
      game = room.game(goal=goal_of(wanted), task=task)
      return Generated(game, wanted, room, room_kind)

  def _draw_room(self, rng: random.Random, kind: str) -> Room:
    return draw_room(
      rng,
      kind,
      num_receptacles=self.num_receptacles,
      num_things=self.num_things,
    )


def _rooms_for(kind: str) -> list[str]:
  """Kinds of room that have what a type of task needs."""
  tool = {
    "pick_clean_then_place_in_recep": "sinkbasin",
    "pick_heat_then_place_in_recep": "microwave",
    "pick_cool_then_place_in_recep": "fridge",
  }.get(kind)
  return [
    name
    for name, room in ROOM_KINDS.items()
    if (tool is None or tool in room.furniture)
    and (kind != LOOK or "desklamp" in room.things)
  ]


def _draw_wanted(rng: random.Random, kind: str, room: Room) -> Wanted | None:
  """Something that can be had here; None if there is nothing of the kind."""
  things = sorted({name for name, _ in room.things if name in FITS})
  if kind == LOOK:
    if not any(name == "desklamp" for name, _ in room.things) or not things:
      return None
    return Wanted(kind, rng.choice(things), "desklamp")
  furniture = {name for name, _ in room.receptacles}
  choices = []
  for thing in things:
    probe = Wanted(kind, thing, "")
    if probe.state and ABLE_FOR[probe.state] not in TRAITS_OF[thing]:
      continue
    tool = TOOL_FOR.get(probe.state)
    if tool is not None and tool not in furniture:
      continue
    fitting = sorted(set(FITS[thing]) & furniture)
    # What is asked for must not lie in the only place that it fits.
    if len(fitting) < 2:
      continue
    choices += [Wanted(kind, thing, r) for r in fitting if r != tool]
  return rng.choice(choices) if choices else None


def _require_bounds(
  name: str, bounds: tuple[int, int], *, least: int, most: int
) -> None:
  low, high = bounds
  if not least <= low <= high <= most:
    raise ConfigError(
      f"ALFWorld's {name} is {bounds!r}; allowed is a pair (low, high) with "
      f"{least} <= low <= high <= {most}"
    )
