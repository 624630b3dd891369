"""ALFWorld's six task types: their goals in PDDL and their texts."""

import dataclasses
from collections.abc import Mapping

from environments.alfworld.games.game import Formula
from environments.alfworld.games.pddl import parse

# The state that each task type requires of the thing; "" for none.
REQUIRED_STATE: Mapping[str, str] = {
  "pick_and_place_simple": "",
  "look_at_obj_in_light": "",
  "pick_clean_then_place_in_recep": "isclean",
  "pick_heat_then_place_in_recep": "ishot",
  "pick_cool_then_place_in_recep": "iscool",
  "pick_two_obj_and_place": "",
}
TASK_TYPES = tuple(REQUIRED_STATE)
LOOK, TWO = "look_at_obj_in_light", "pick_two_obj_and_place"

# For each state: the trait that a thing needs, the receptacle that changes it.
TRAIT_FOR = {"isclean": "cleanable", "ishot": "heatable", "iscool": "coolable"}
TOOL_FOR = {"isclean": "sinkbasin", "ishot": "microwave", "iscool": "fridge"}

PHRASES: Mapping[str, tuple[str, str]] = {
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
class TaskSpec:
  """Parameters of a task; `target` is a type of receptacle, or of lamp."""

  type: str
  thing: str
  target: str

  @property
  def state(self) -> str:
    """The state that the thing must be in, "" for any."""
    return REQUIRED_STATE[self.type]


def goal_of(spec: TaskSpec) -> Formula:
  """Writes the goal of a task as a PDDL formula."""
  o, r = f"{spec.thing}type", f"{spec.target}type"
  if spec.type == LOOK:
    return parse(
      f"""(and
      (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
        (and (objectType ?ot {r}) (toggleable ?ot) (isToggled ?ot)
          (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
          (inReceptacle ?ot ?r)))
      (exists (?o - object ?a - agent)
        (and (objectType ?o {o}) (holds ?a ?o))))"""
    )
  if spec.type == TWO:
    return parse(
      f"""(exists (?r - receptacle ?o1 - object ?o2 - object)
      (and (receptacleType ?r {r}) (objectType ?o1 {o}) (objectType ?o2 {o})
        (not (= ?o1 ?o2)) (inReceptacle ?o1 ?r) (inReceptacle ?o2 ?r)))"""
    )
  state = spec.state
  state_facts = f"({TRAIT_FOR[state]} ?o) ({state} ?o)" if state else ""
  return parse(
    f"""(exists (?r - receptacle ?o - object)
    (and (objectType ?o {o}) (receptacleType ?r {r}) {state_facts}
      (inReceptacle ?o ?r)))"""
  )


def read_goal(goal: Formula) -> TaskSpec | None:
  """Recognises the task of a goal from any source; None if of no known type."""
  facts = list(_facts(goal))
  predicates = {str(fact[0]) for fact in facts}
  types = [
    str(f[2]).removesuffix("type") for f in facts if f[0] == "objecttype"
  ]
  targets = {
    str(f[2]).removesuffix("type") for f in facts if f[0] == "receptacletype"
  }
  if predicates & {"issliced", "inreceptacleobject", "forall"}:
    return None
  if "istoggled" in predicates and len(types) == 2:
    return TaskSpec(LOOK, types[1], types[0])
  if len(targets) != 1 or not 1 <= len(types) <= 2 or len(set(types)) != 1:
    return None
  (target,) = targets
  if len(types) == 2:
    return TaskSpec(TWO, types[0], target)
  state = next((state for state in TRAIT_FOR if state in predicates), "")
  kind = next(
    kind
    for kind, required in REQUIRED_STATE.items()
    if required == state and kind not in (LOOK, TWO)
  )
  return TaskSpec(kind, types[0], target)


def _facts(formula: Formula) -> list[tuple[Formula, ...]]:
  """Lists the facts of a formula in order; of a quantifier, its name alone."""
  if isinstance(formula, str) or not formula:
    return []
  if formula[0] in ("and", "or", "not"):
    return [fact for part in formula[1:] for fact in _facts(part)]
  if formula[0] in ("exists", "forall"):
    return [(formula[0],), *_facts(formula[2])]
  return [formula]
