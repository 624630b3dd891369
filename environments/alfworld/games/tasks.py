"""ALFWorld's six types of task: what each wants, in PDDL and in words."""

import dataclasses
from collections.abc import Mapping

from environments.alfworld.games.game import Formula
from environments.alfworld.games.pddl import parse

# State that each type wants of the thing, "" for none.
STATE_WANTED: Mapping[str, str] = {
  "pick_and_place_simple": "",
  "look_at_obj_in_light": "",
  "pick_clean_then_place_in_recep": "isclean",
  "pick_heat_then_place_in_recep": "ishot",
  "pick_cool_then_place_in_recep": "iscool",
  "pick_two_obj_and_place": "",
}
TASK_TYPES = tuple(STATE_WANTED)
LOOK, TWO = "look_at_obj_in_light", "pick_two_obj_and_place"

# What makes a state, and what a thing must be for it.
ABLE_FOR = {"isclean": "cleanable", "ishot": "heatable", "iscool": "coolable"}
TOOL_FOR = {"isclean": "sinkbasin", "ishot": "microwave", "iscool": "fridge"}

WORDS: Mapping[str, tuple[str, str]] = {
  "pick_and_place_simple": ("put a {o} in {r}", "put some {o} on {r}"),
  "look_at_obj_in_light": (
    "look at {o} under the {r}",
    "examine the {o} with the {r}",
  ),
  "pick_clean_then_place_in_recep": (
    "put a clean {o} in {r}",
    "clean some {o} and put it in {r}",
  ),
  "pick_heat_then_place_in_recep": (
    "put a hot {o} in {r}",
    "heat some {o} and put it in {r}",
  ),
  "pick_cool_then_place_in_recep": (
    "put a cool {o} in {r}",
    "cool some {o} and put it in {r}",
  ),
  "pick_two_obj_and_place": (
    "put two {o} in {r}",
    "find two {o} and put them in {r}",
  ),
}


@dataclasses.dataclass(frozen=True)
class Wanted:
  """What a task asks for; `target` is a type of receptacle, or of lamp."""

  type: str
  thing: str
  target: str

  @property
  def state(self) -> str:
    """The state that the thing must be in, "" for any."""
    return STATE_WANTED[self.type]


def goal_of(wanted: Wanted) -> Formula:
  """The goal as a PDDL formula."""
  o, r = f"{wanted.thing}type", f"{wanted.target}type"
  if wanted.type == LOOK:
    return parse(
      f"""(and
      (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
        (and (objectType ?ot {r}) (toggleable ?ot) (isToggled ?ot)
          (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
          (inReceptacle ?ot ?r)))
      (exists (?o - object ?a - agent)
        (and (objectType ?o {o}) (holds ?a ?o))))"""
    )
  if wanted.type == TWO:
    return parse(
      f"""(exists (?r - receptacle ?o1 - object ?o2 - object)
      (and (receptacleType ?r {r}) (objectType ?o1 {o}) (objectType ?o2 {o})
        (not (= ?o1 ?o2)) (inReceptacle ?o1 ?r) (inReceptacle ?o2 ?r)))"""
    )
  state = wanted.state
  also = f"({ABLE_FOR[state]} ?o) ({state} ?o)" if state else ""
  return parse(
    f"""(exists (?r - receptacle ?o - object)
    (and (objectType ?o {o}) (receptacleType ?r {r}) {also}
      (inReceptacle ?o ?r)))"""
  )


def read_goal(goal: Formula) -> Wanted | None:
  """What a goal asks for, whoever wrote it; None if it is of no known type."""
  facts = list(_facts(goal))
  heads = {str(fact[0]) for fact in facts}
  types = [
    str(f[2]).removesuffix("type") for f in facts if f[0] == "objecttype"
  ]
  targets = {
    str(f[2]).removesuffix("type") for f in facts if f[0] == "receptacletype"
  }
  if heads & {"issliced", "inreceptacleobject", "forall"}:
    return None
  if "istoggled" in heads and len(types) == 2:
    return Wanted(LOOK, types[1], types[0])
  if len(targets) != 1 or not 1 <= len(types) <= 2 or len(set(types)) != 1:
    return None
  (target,) = targets
  if len(types) == 2:
    return Wanted(TWO, types[0], target)
  state = next((state for state in ABLE_FOR if state in heads), "")
  kind = next(
    kind
    for kind, wanted in STATE_WANTED.items()
    if wanted == state and kind not in (LOOK, TWO)
  )
  return Wanted(kind, types[0], target)


def _facts(formula: Formula) -> list[tuple[Formula, ...]]:
  """Every fact in a formula, in order; of quantifiers, the name alone."""
  if isinstance(formula, str) or not formula:
    return []
  if formula[0] in ("and", "or", "not"):
    return [fact for part in formula[1:] for fact in _facts(part)]
  if formula[0] in ("exists", "forall"):
    return [(formula[0],), *_facts(formula[2])]
  return [formula]
