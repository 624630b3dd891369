"""Draws the furniture of a room and the things in it."""

import dataclasses
import random
from collections.abc import Sequence

from environments.alfworld.games.game import Formula, Game, Receptacle, Thing
from environments.alfworld.games.tasks import LOOK, TWO, TaskSpec
from environments.alfworld.generation.catalogue import (
  FITS,
  OPENABLE,
  ROOM_KINDS,
  TRAITS_OF,
  places_of,
)

SHARED_LOCATION = 0.1  # chance that a receptacle stands with the one before it
THING_COUNTS = (1, 1, 1, 2, 2, 3, 4)  # equally likely, for one type


@dataclasses.dataclass(frozen=True)
class Room:
  """Furniture and things by type, before they get names."""

  receptacles: tuple[tuple[str, bool], ...]  # (type, is_openable), sorted
  locations: tuple[int, ...]  # of the receptacles
  things: tuple[tuple[str, int], ...]  # (type, receptacle), sorted

  @property
  def canonical(self) -> str:
    """A text that is equal for equal rooms."""
    return repr((self.receptacles, self.locations, self.things))

  def prepared(self, rng: random.Random, spec: TaskSpec) -> "Room":
    """Moves the task's things off the target, and adds those that lack."""
    others = [t for t in self.things if t[0] != spec.thing]
    count = sum(name == spec.thing for name, _ in self.things)
    if spec.type == TWO:
      count = max(2, count)
    target = "" if spec.type == LOOK else spec.target
    places = [
      r
      for r, (kind, _) in enumerate(self.receptacles)
      if kind in FITS[spec.thing] and kind != target
    ]
    own = [(spec.thing, rng.choice(places)) for _ in range(count)]
    return dataclasses.replace(self, things=tuple(sorted([*others, *own])))

  def game(self, *, goal: Formula, task: str) -> Game:
    """Names everything, and starts the agent away from all receptacles."""
    receptacle_names = _numbered([kind for kind, _ in self.receptacles])
    thing_names = _numbered([kind for kind, _ in self.things])
    types = {kind for kind, _ in self.receptacles}
    movable = {kind for kind, _ in self.things if kind in FITS}
    start = 1 + max(self.locations)
    return Game(
      receptacles=tuple(
        Receptacle(name, kind, location, is_openable=is_openable)
        for name, (kind, is_openable), location in zip(
          receptacle_names, self.receptacles, self.locations, strict=True
        )
      ),
      things=tuple(
        Thing(name, kind, TRAITS_OF[kind])
        for name, (kind, _) in zip(thing_names, self.things, strict=True)
      ),
      num_locations=start + 1,
      start=start,
      inside=frozenset((o, r) for o, (_, r) in enumerate(self.things)),
      at=frozenset(
        (o, self.locations[r]) for o, (_, r) in enumerate(self.things)
      ),
      fits=frozenset((r, o) for o in movable for r in FITS[o] if r in types),
      goal=goal,
      task=task,
    )


def draw_room(
  rng: random.Random,
  kind: str,
  *,
  num_receptacles: tuple[int, int],
  num_things: tuple[int, int],
) -> Room:
  """Draws a room of a kind.

  Bounds are inclusive. A room may have fewer things where its furniture accepts
  none.
  """
  receptacles = _draw_receptacles(rng, kind, num_receptacles)
  locations: list[int] = []
  for _ in receptacles:
    is_shared = locations and rng.random() < SHARED_LOCATION
    locations.append(
      locations[-1] if is_shared else 1 + max(locations, default=-1)
    )
  things = _draw_things(rng, kind, [k for k, _ in receptacles], num_things)
  return Room(receptacles, tuple(locations), things)


def _draw_receptacles(
  rng: random.Random, kind: str, bounds: tuple[int, int]
) -> tuple[tuple[str, bool], ...]:
  furniture = ROOM_KINDS[kind].furniture
  counts = {
    name: rng.randint(f.min_count, f.max_count)
    for name, f in furniture.items()
    if rng.random() < f.chance
  }
  low, high = bounds
  while sum(counts.values()) > high:
    counts[rng.choice([k for k, n in counts.items() if n > 0])] -= 1
  while sum(counts.values()) < low:
    counts[rng.choice(list(counts))] += 1
  return tuple(
    (name, rng.random() < OPENABLE.get(name, 0.0))
    for name in sorted(counts)
    for _ in range(counts[name])
  )


def _draw_things(
  rng: random.Random,
  kind: str,
  receptacles: Sequence[str],
  bounds: tuple[int, int],
) -> tuple[tuple[str, int], ...]:
  chances = ROOM_KINDS[kind].things
  places = {
    name: [r for r, k in enumerate(receptacles) if k in places_of(name)]
    for name in chances
  }
  drawn: list[tuple[str, int]] = []
  for name, chance in chances.items():
    if places[name] and rng.random() < chance:
      count = rng.choice(THING_COUNTS) if name in FITS else 1
      drawn += [(name, rng.choice(places[name])) for _ in range(count)]
  low, high = bounds
  rng.shuffle(drawn)
  additional = [name for name in places if places[name] and name in FITS]
  while additional and len(drawn) < low:
    name = rng.choice(additional)
    drawn.append((name, rng.choice(places[name])))
  return tuple(sorted(drawn[:high]))


def _numbered(kinds: Sequence[str]) -> list[str]:
  """Names sorted types with numbers that decrease, as ALFWorld does."""
  remaining = {kind: kinds.count(kind) for kind in kinds}
  names = []
  for kind in kinds:
    names.append(f"{kind} {remaining[kind]}")
    remaining[kind] -= 1
  return names
