"""A scripted player of KnowledgeGraph, with or without mistakes.

It makes the gold calls one by one and names the last variable. A mistake drops
a call, spoils one, or stops early, so that a policy warmed up on such play has
something to unlearn; what depends on a spoilt call goes on with what there is.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.knowledgegraph.problem import GoldCall, Problem
from environments.knowledgegraph.session import PARAMETERS

SKIP_RELATIONS = "skip_relations"  # does not look before it follows; no harm
WRONG_RELATION = "wrong_relation"  # follows another relation of the list once
WRONG_ATTRIBUTE = "wrong_attribute"  # compares by another attribute of the list
WRONG_ORDER = "wrong_order"  # the least for the greatest, or the reverse
NO_INTERSECTION = "no_intersection"  # takes the first operand for both
STOP_EARLY = "stop_early"  # names a variable before the last call: no count
WRONG_VARIABLE = "wrong_variable"  # names the first variable
MISTAKES = (
  SKIP_RELATIONS,
  WRONG_RELATION,
  WRONG_ATTRIBUTE,
  WRONG_ORDER,
  NO_INTERSECTION,
  STOP_EARLY,
  WRONG_VARIABLE,
)
VARIABLE = re.compile(r"variable #(\d+),")
LISTING = re.compile(r"Observation: \[(.*)\]")
LISTINGS = ("get_relations", "get_attributes")


class KGExpert(Expert):
  """Plays a list of calls, adapting to the numbers that variables get."""

  def __init__(
    self, problem: Problem, *, mistakes: Sequence[str], rng: random.Random
  ):
    self._rng = rng
    self._mistakes = frozenset(mistakes)
    self._names = {id_: name for name, id_ in problem.entities.items()}
    self._calls = self._planned(problem.gold_calls)
    self._num_calls = 0
    self._pending: GoldCall | None = None
    self._made: dict[str, str] = {}  # "#k" of the gold calls -> as numbered
    self._num_results = 0
    self._last = "#0"  # the newest variable
    self._listed: list[str] = []

  def answer(self, messages: Sequence[Message]) -> Message:
    """The next call; after the last one, the answer."""
    self._read(messages[-1].content)
    if not self._calls:
      named = "#0" if WRONG_VARIABLE in self._mistakes else self._last
      return Message("assistant", f"Final Answer: {named}")
    self._pending = self._calls.pop(0)
    self._num_calls += 1
    return call_of(self._spoilt(self._pending), self._num_calls)

  def _planned(self, calls: Sequence[GoldCall]) -> list[GoldCall]:
    planned = list(calls)
    if SKIP_RELATIONS in self._mistakes:
      planned = [call for call in planned if call.name != "get_relations"]
    if STOP_EARLY in self._mistakes and len(planned) > 1:
      planned.pop()
    hops = [i for i, c in enumerate(planned) if c.name == "get_neighbors"]
    self._wrong_hop = planned[self._rng.choice(hops)] if hops else None
    return planned

  def _read(self, reply: str) -> None:
    """Notes what the last call brought: a variable, a list, or an error."""
    pending, self._pending = self._pending, None
    if pending is None:
      return
    listing = LISTING.fullmatch(reply)
    if pending.name in LISTINGS:
      self._listed = listing[1].split(", ") if listing else []
      return
    number = VARIABLE.search(reply)
    if number is not None:
      self._last = f"#{number[1]}"
    self._made[f"#{self._num_results}"] = self._last
    self._num_results += 1

  def _spoilt(self, call: GoldCall) -> GoldCall:
    """The call as it is made: with what is known, and with its mistake."""
    name, arguments = call.name, [*map(self._meant, call.arguments)]
    if name == "get_neighbors" and call is self._wrong_hop:
      arguments[1] = self._other(arguments[1], WRONG_RELATION)
    if name in ("argmax", "argmin"):
      arguments[1] = self._other(arguments[1], WRONG_ATTRIBUTE)
      if WRONG_ORDER in self._mistakes:
        name = "argmin" if name == "argmax" else "argmax"
    if name == "intersection" and NO_INTERSECTION in self._mistakes:
      arguments[1] = arguments[0]
    return GoldCall(name, tuple(arguments))

  def _meant(self, argument: str) -> str:
    return self._made.get(argument, self._names.get(argument, argument))

  def _other(self, name: str, mistake: str) -> str:
    """Another name of the last list, if that mistake is made and there is."""
    others = [other for other in self._listed if other not in (name, "")]
    if mistake not in self._mistakes or not others:
      return name
    return self._rng.choice(others)


def call_of(call: GoldCall, number: int) -> Message:
  """The answer that makes one call, the so-and-so-many'th."""
  named = zip(PARAMETERS[call.name], call.arguments, strict=True)
  arguments = json.dumps(dict(named), ensure_ascii=False)
  return Message(
    "assistant",
    tool_calls=(ToolCall(call.name, arguments, id=f"call_{number}"),),
  )


def expert_for(
  problem: Problem, *, seed: int, mistakes: Mapping[str, float]
) -> KGExpert:
  """Plays the gold calls, spoilt by the mistakes that the seed draws."""
  require_known(mistakes, MISTAKES, where="KnowledgeGraph's expert")
  rng = random.Random(f"{problem.question}/{seed}")
  made = [m for m in MISTAKES if rng.random() < mistakes.get(m, 0.0)]
  return KGExpert(problem, mistakes=made, rng=rng)
