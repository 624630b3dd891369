"""Statistics and rules that generated rooms follow.

Kinds of room, their furniture and their things follow ALFWorld's 120 rooms.
Which receptacles accept a thing, and its traits, are ALFRED's rules.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Furniture:
  """Chance that a kind of room has a type of receptacle, and bounds if so."""

  chance: float
  min_count: int
  max_count: int


@dataclasses.dataclass(frozen=True)
class RoomKind:
  """One kind of room; `things` maps a type to the chance of having any."""

  furniture: Mapping[str, Furniture]
  things: Mapping[str, float]


def _furniture(**lines: str) -> Mapping[str, Furniture]:
  """Parses lines of the form "chance min-max"."""
  furniture = {}
  for name, line in lines.items():
    chance, bounds = line.split()
    furniture[name] = Furniture(float(chance), *map(int, bounds.split("-")))
  return furniture


def _things(**lines: str) -> Mapping[str, float]:
  """Parses lists of types by their chance in tenths: t3 means 0.3."""
  return {
    name: int(tenths[1:]) / 10
    for tenths, names in lines.items()
    for name in names.split()
  }


ROOM_KINDS: Mapping[str, RoomKind] = {
  "kitchen": RoomKind(
    _furniture(
      cabinet="1 2-20",
      coffeemachine="1 1-1",
      countertop="1 1-4",
      diningtable=".5 1-2",
      drawer="1 1-12",
      fridge="1 1-1",
      garbagecan="1 1-1",
      microwave="1 1-1",
      safe=".05 1-1",
      shelf=".2 2-3",
      sidetable=".1 1-1",
      sinkbasin="1 1-1",
      stoveburner="1 4-6",
      toaster="1 1-1",
    ),
    _things(
      t10="apple bowl bread butterknife cup dishsponge egg fork knife lettuce "
      "mug pan peppershaker plate pot potato saltshaker soapbottle spatula "
      "spoon tomato",
      t5="cellphone creditcard glassbottle houseplant papertowelroll statue "
      "vase",
      t3="kettle ladle winebottle",
      t1="book pen pencil spraybottle",
    ),
  ),
  "livingroom": RoomKind(
    _furniture(
      armchair="1 1-3",
      cabinet=".15 1-6",
      coffeetable=".8 1-2",
      desk=".05 1-1",
      diningtable=".5 1-2",
      drawer=".75 1-12",
      dresser=".4 1-2",
      garbagecan="1 1-1",
      ottoman=".2 1-1",
      safe=".1 1-1",
      shelf=".4 1-10",
      sidetable=".75 1-4",
      sofa="1 1-2",
      tvstand=".5 1-2",
    ),
    _things(
      t10="box creditcard keychain laptop pillow remotecontrol statue",
      t7="newspaper tissuebox vase watch",
      t5="cellphone television",
      t3="book houseplant",
      t1="bowl candle desklamp pen pencil plate wateringcan",
    ),
  ),
  "bedroom": RoomKind(
    _furniture(
      armchair=".2 1-3",
      bed="1 1-2",
      cabinet=".15 1-4",
      countertop=".05 1-1",
      desk=".7 1-2",
      diningtable=".1 1-1",
      drawer="1 2-12",
      dresser=".5 1-2",
      garbagecan="1 1-1",
      laundryhamper=".3 1-1",
      safe=".2 1-1",
      shelf=".7 1-8",
      sidetable=".6 1-2",
    ),
    _things(
      t10="alarmclock book cd cellphone creditcard keychain laptop pen pencil "
      "pillow",
      t8="desklamp",
      t7="bowl mug",
      t3="houseplant teddybear cloth",
      t1="baseballbat basketball box mirror remotecontrol statue tennisracket "
      "tissuebox vase watch",
    ),
  ),
  "bathroom": RoomKind(
    _furniture(
      bathtubbasin=".7 1-1",
      cabinet=".5 2-8",
      cart=".1 1-1",
      countertop=".85 1-2",
      drawer=".5 1-8",
      dresser=".1 1-1",
      garbagecan="1 1-1",
      handtowelholder="1 1-3",
      shelf=".3 1-4",
      sidetable=".1 1-1",
      sinkbasin="1 1-2",
      toilet="1 1-1",
      toiletpaperhanger="1 1-1",
      towelholder="1 1-2",
    ),
    _things(
      t10="candle cloth handtowel soapbar soapbottle spraybottle toiletpaper "
      "towel",
      t3="dishsponge tissuebox",
      t1="houseplant papertowelroll plunger",
    ),
  ),
}

# Chance that a receptacle of a type has a door.
OPENABLE: Mapping[str, float] = {
  "cabinet": 0.85,
  "drawer": 0.9,
  "fridge": 1.0,
  "microwave": 1.0,
  "safe": 1.0,
}
_TABLES = "coffeetable countertop desk diningtable dresser shelf sidetable"
_SURFACES = "coffeetable countertop diningtable sidetable"
_SEATS = "armchair ottoman sofa"

# Receptacles that accept each thing.
_PLACES: Mapping[str, str] = {
  "alarmclock": f"{_TABLES}",
  "apple": f"{_SURFACES} fridge garbagecan microwave sinkbasin",
  "baseballbat": f"{_SURFACES} bed",
  "basketball": f"{_SURFACES} armchair bed desk dresser ottoman sofa",
  "book": f"{_TABLES} {_SEATS} bed cabinet drawer",
  "bowl": f"{_TABLES} cabinet fridge microwave sinkbasin",
  "box": f"{_TABLES} {_SEATS} cabinet",
  "bread": f"{_SURFACES} fridge garbagecan microwave",
  "butterknife": f"{_SURFACES} drawer sinkbasin",
  "candle": f"{_TABLES} cabinet cart drawer toilet",
  "cd": f"{_TABLES} cabinet drawer garbagecan safe",
  "cellphone": f"{_TABLES} {_SEATS} bed drawer safe",
  "cloth": f"{_TABLES} {_SEATS} bathtubbasin cabinet cart drawer garbagecan "
  "laundryhamper sinkbasin toilet",
  "creditcard": f"{_TABLES} {_SEATS} drawer safe",
  "cup": f"{_TABLES} cabinet fridge microwave sinkbasin",
  "dishsponge": f"{_SURFACES} shelf bathtubbasin cabinet cart drawer "
  "garbagecan sinkbasin toilet",
  "egg": f"{_SURFACES} fridge garbagecan microwave sinkbasin",
  "fork": f"{_SURFACES} drawer sinkbasin",
  "glassbottle": f"{_TABLES} cabinet fridge microwave sinkbasin",
  "handtowel": f"{_SURFACES} shelf bathtubbasin cabinet cart drawer garbagecan "
  "handtowelholder sinkbasin toilet",
  "kettle": f"{_SURFACES} shelf cabinet sinkbasin stoveburner",
  "keychain": f"{_TABLES} {_SEATS} drawer safe",
  "knife": f"{_SURFACES} drawer sinkbasin",
  "ladle": f"{_SURFACES} cabinet drawer sinkbasin",
  "laptop": f"{_SURFACES} {_SEATS} bed desk dresser",
  "lettuce": f"{_SURFACES} fridge garbagecan sinkbasin",
  "mug": f"{_TABLES} cabinet cart coffeemachine fridge microwave sinkbasin",
  "newspaper": f"{_TABLES} {_SEATS} bed cabinet drawer garbagecan toilet",
  "pan": f"{_SURFACES} cabinet fridge sinkbasin stoveburner",
  "pen": f"{_TABLES} drawer garbagecan",
  "pencil": f"{_TABLES} drawer garbagecan",
  "peppershaker": f"{_SURFACES} shelf cabinet drawer",
  "pillow": f"{_SEATS} bed",
  "plate": f"{_TABLES} cabinet fridge microwave sinkbasin",
  "plunger": "cabinet cart",
  "pot": f"{_SURFACES} shelf cabinet fridge sinkbasin stoveburner",
  "potato": f"{_SURFACES} fridge garbagecan microwave sinkbasin",
  "remotecontrol": f"{_TABLES} {_SEATS} drawer",
  "saltshaker": f"{_SURFACES} shelf cabinet drawer",
  "soapbar": f"{_SURFACES} shelf bathtubbasin cabinet cart drawer garbagecan "
  "sinkbasin toilet",
  "soapbottle": f"{_SURFACES} desk shelf cabinet cart drawer garbagecan toilet",
  "spatula": f"{_SURFACES} drawer sinkbasin",
  "spoon": f"{_SURFACES} drawer sinkbasin",
  "spraybottle": f"{_TABLES} cabinet cart drawer garbagecan toilet",
  "statue": f"{_TABLES} cart safe",
  "tennisracket": f"{_SURFACES} bed desk dresser",
  "tissuebox": f"{_TABLES} cabinet cart drawer garbagecan toilet tvstand",
  "toiletpaper": f"{_TABLES} cabinet cart drawer garbagecan toilet "
  "toiletpaperhanger",
  "tomato": f"{_SURFACES} fridge garbagecan microwave sinkbasin",
  "towel": "towelholder",
  "vase": f"{_TABLES} cabinet cart safe",
  "watch": f"{_TABLES} drawer safe",
  "wateringcan": f"{_TABLES} cabinet drawer",
  "winebottle": f"{_TABLES} cabinet fridge garbagecan",
}
FITS = {name: tuple(places.split()) for name, places in _PLACES.items()}

# Initial places of things that no receptacle accepts once they are taken.
_INITIAL_PLACES: Mapping[str, str] = {
  "desklamp": "desk dresser shelf sidetable",
  "houseplant": "coffeetable countertop desk diningtable sidetable",
  "mirror": "dresser desk",
  "papertowelroll": "countertop shelf",
  "teddybear": "bed armchair",
  "television": "tvstand dresser coffeetable",
}

_THINGS_WITH = {
  "cleanable": "apple bowl butterknife cloth cup dishsponge egg fork kettle "
  "knife ladle lettuce mug pan plate pot potato soapbar spatula spoon tomato",
  "heatable": "apple bread cup egg mug plate potato tomato",
  "coolable": "apple bowl bread cup egg lettuce mug pan plate pot potato "
  "tomato winebottle",
  "sliceable": "apple bread egg lettuce potato tomato",
  "toggleable": "desklamp",
  "isreceptacleobject": "bowl box cup mug pan plate pot",
}
_ONLY_TAKEN = ("papertowelroll", "teddybear")  # pickupable, yet not in FITS
TRAITS_OF: Mapping[str, frozenset[str]] = {
  name: frozenset(
    trait for trait, names in _THINGS_WITH.items() if name in names.split()
  )
  | ({"pickupable"} if name in FITS or name in _ONLY_TAKEN else set())
  for name in (*FITS, *_INITIAL_PLACES)
}


def places_of(thing: str) -> tuple[str, ...]:
  """Types of receptacles in which a thing may lie at the beginning."""
  return FITS.get(thing) or tuple(_INITIAL_PLACES[thing].split())
