"""Furnishes a room, and puts things into it."""

import dataclasses
import random
from collections.abc import Sequence

from environments.alfworld.games.game import Formula, Game, Receptacle, Thing
from environments.alfworld.games.tasks import LOOK, TWO, Wanted
from environments.alfworld.generation.catalogue import (
  FITS,
  FOUND,
  OPENABLE,
  ROOM_KINDS,
  TRAITS_OF,
)

SHARED_PLACE = 0.1  # chance to be reached from where the one before is
MORE_OF_A_KIND = (1, 1, 1, 2, 2, 3, 4)  # things of one type


@dataclasses.dataclass(frozen=True)
class Room:
  """Furniture and things by type, before they have names."""

  receptacles: tuple[tuple[str, bool], ...]  # (type, opens), sorted
  places: tuple[int, ...]  # of the receptacles
  things: tuple[tuple[str, int], ...]  # (type, receptacle), sorted

  @property
  def canonical(self) -> str:
    """Equal for equal rooms: furniture, where it stands, what lies where."""
    return repr((self.receptacles, self.places, self.things))

  def prepared(self, rng: random.Random, wanted: Wanted) -> "Room":
    """The room with enough of what is wanted, and none of it in place yet."""
    others = [t for t in self.things if t[0] != wanted.thing]
    count = sum(name == wanted.thing for name, _ in self.things)
    if wanted.type == TWO:
      count = max(2, count)
    target = "" if wanted.type == LOOK else wanted.target
    spots = [
      r
      for r, (kind, _) in enumerate(self.receptacles)
      if kind in FITS[wanted.thing] and kind != target
    ]
    own = [(wanted.thing, rng.choice(spots)) for _ in range(count)]
    return dataclasses.replace(self, things=tuple(sorted([*others, *own])))

  def game(self, *, goal: Formula, task: str) -> Game:
    """The game in this room."""
    names = _numbered([kind for kind, _ in self.receptacles])
    called = _numbered([kind for kind, _ in self.things])
    types = {kind for kind, _ in self.receptacles}
    present = {kind for kind, _ in self.things if kind in FITS}
    num_places = 1 + max(self.places)
    return Game(
      receptacles=tuple(
        Receptacle(name, kind, place, is_openable=opens)
        for name, (kind, opens), place in zip(
          names, self.receptacles, self.places, strict=True
        )
      ),
      things=tuple(
        Thing(name, kind, TRAITS_OF[kind])
        for name, (kind, _) in zip(called, self.things, strict=True)
      ),
      num_locations=num_places + 1,
      start=num_places,  # away from everything
      inside=frozenset((o, r) for o, (_, r) in enumerate(self.things)),
      at=frozenset((o, self.places[r]) for o, (_, r) in enumerate(self.things)),
      fits=frozenset((r, o) for o in present for r in FITS[o] if r in types),
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
  """A furnished room of a kind; bounds are inclusive, where the kind allows."""
  receptacles = _draw_receptacles(rng, kind, num_receptacles)
  places: list[int] = []
  for _ in receptacles:
    shares = places and rng.random() < SHARED_PLACE
    places.append(places[-1] if shares else 1 + max(places, default=-1))
  things = _draw_things(rng, kind, [k for k, _ in receptacles], num_things)
  return Room(receptacles, tuple(places), things)


def _draw_receptacles(
  rng: random.Random, kind: str, bounds: tuple[int, int]
) -> tuple[tuple[str, bool], ...]:
  furniture = ROOM_KINDS[kind].furniture
  counts = {
    name: rng.randint(f.least, f.most)
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
  spots = {
    name: [r for r, k in enumerate(receptacles) if k in _places_of(name)]
    for name in chances
  }
  drawn: list[tuple[str, int]] = []
  for name, chance in chances.items():
    if spots[name] and rng.random() < chance:
      count = 1 if name in FOUND else rng.choice(MORE_OF_A_KIND)
      drawn += [(name, rng.choice(spots[name])) for _ in range(count)]
  low, high = bounds
  rng.shuffle(drawn)
  more = [name for name, found in spots.items() if found and name in FITS]
  while more and len(drawn) < low:
    name = rng.choice(more)
    drawn.append((name, rng.choice(spots[name])))
  return tuple(sorted(drawn[:high]))


def _places_of(name: str) -> tuple[str, ...]:
  return FOUND.get(name) or FITS[name]


def _numbered(kinds: Sequence[str]) -> list[str]:
  """Names for sorted types, with numbers that go down, as ALFWorld's do."""
  left = {kind: kinds.count(kind) for kind in kinds}
  names = []
  for kind in kinds:
    names.append(f"{kind} {left[kind]}")
    left[kind] -= 1
  return names
