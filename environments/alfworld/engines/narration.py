"""How things are told, in ALFWorld's words."""

from collections.abc import Collection, Sequence

from environments.alfworld.games.game import Receptacle, Thing

NOTHING_HAPPENS = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
# The first whose states are all there is told, in this order.
_CONDITIONS = (
  (("isclean", "ishot", "issliced"), "a hot and clean sliced"),
  (("isclean", "iscool", "issliced"), "a cool and clean sliced"),
  (("isclean", "issliced"), "a clean sliced"),
  (("ishot", "issliced"), "a hot sliced"),
  (("iscool", "issliced"), "a cool sliced"),
  (("isclean", "ishot"), "a hot and clean"),
  (("isclean", "iscool"), "a cool and clean"),
  (("ishot",), "a hot"),
  (("isclean",), "a clean"),
  (("iscool",), "a cold"),
)


def listing(names: Sequence[str]) -> str:
  """ "a", "a, and b", "a, b, and c"; "nothing" for none."""
  if len(names) < 2:
    return names[0] if names else "nothing"
  return f"{', '.join(names[:-1])}, and {names[-1]}"


def introduce(seen: str, task: str) -> str:
  """What is told before the first command."""
  banner = "-= Welcome to TextWorld, ALFRED! =-"
  return f"{banner}\n\n{seen}\n\nYour task is to: {task}."


def look_around(receptacles: Sequence[str]) -> str:
  """What a look tells away from everything."""
  seen = listing([f"a {name}" for name in receptacles])
  return (
    "You are in the middle of a room. Looking quickly around you, you see "
    f"{seen}."
  )


def look_at(receptacles: Sequence[str], lying: Sequence[str]) -> str:
  """What a look tells in front of receptacles."""
  beside = listing([f"a {name}" for name in lying])
  return (
    f"You are facing the {listing(receptacles)}. Next to it, you see {beside}."
  )


def describe(
  receptacle: Receptacle, *, is_open: bool, contents: Sequence[str]
) -> str:
  """What a look at a receptacle tells."""
  seen = listing([f"a {name}" for name in contents])
  if not receptacle.is_openable:
    return f"On the {receptacle.name}, you see {seen}."
  if is_open:
    return f"The {receptacle.name} is open. In it, you see {seen}."
  return f"The {receptacle.name} is closed."


def examine_thing(
  thing: Thing, states: Collection[str], contents: Sequence[str]
) -> str:
  """What a look at a held thing tells."""
  if "isreceptacleobject" in thing.traits:
    seen = listing([f"a {name}" for name in contents])
    return f"This is a normal {thing.name}. In it, you see {seen}."
  for needed, words in _CONDITIONS:
    if all(state in states for state in needed):
      return f"This is {words} {thing.name}."
  if "toggleable" in thing.traits and "istoggled" in states:
    return f"This {thing.name} is on."
  if "sliceable" in thing.traits and "issliced" in states:
    return f"This is a sliced {thing.name}."
  return f"There's nothing special about {thing.name}."
