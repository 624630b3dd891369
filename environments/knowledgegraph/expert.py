"""Expert of KnowledgeGraph: the gold calls, with mistakes on request.

The expert makes the gold calls one by one and names the last variable. A
mistake drops or changes a call, or stops early, so that a policy that is warmed
up on such demonstrations has something to unlearn. Calls after a wrong one
continue with its result.
"""

import random
import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import draw_mistakes
from environments.knowledgegraph.problem import GoldCall, KGProblem
from environments.knowledgegraph.session import PARAMETERS
from environments.options import KnowledgeGraphOptions

MISTAKES = KnowledgeGraphOptions.mistakes
VARIABLE = re.compile(r"variable #(\d+),")
LISTING = re.compile(r"Observation: \[(.*)\]")
LISTINGS = ("get_relations", "get_attributes")


class KGExpert(Expert):
  """Makes a list of calls, with the numbers that variables really get."""

  def __init__(
    self, problem: KGProblem, *, seed: int, mistakes: Mapping[str, float]
  ):
    self._rng = random.Random(f"{problem.question}/{seed}")
    self._mistakes = draw_mistakes(
      mistakes, MISTAKES, self._rng, where="KnowledgeGraph's expert"
    )
    self._names = {id_: name for name, id_ in problem.entities.items()}
    self._calls = self._plan(problem.gold_calls)
    self._pending: GoldCall | None = None
    self._variables: dict[str, str] = {}  # "#k" of the gold calls -> of session
    self._last = "#0"  # the newest variable
    self._listed: list[str] = []

  def answer(self, messages: Sequence[Message]) -> Message:
    """Makes the next call, or names the answer after the last one."""
    self._read(messages[-1].content)
    if not self._calls:
      variable = "#0" if "wrong_variable" in self._mistakes else self._last
      return Message("assistant", f"Final Answer: {variable}")
    self._pending = self._calls.pop(0)
    call = self._resolve(self._pending)
    named = zip(PARAMETERS[call.name], call.arguments, strict=True)
    return self.call(call.name, **dict(named))

  def _plan(self, gold_calls: Sequence[GoldCall]) -> list[GoldCall]:
    calls = list(gold_calls)
    if "skip_relations" in self._mistakes:
      calls = [call for call in calls if call.name != "get_relations"]
    if "stop_early" in self._mistakes and len(calls) > 1:
      calls.pop()
    hops = [i for i, c in enumerate(calls) if c.name == "get_neighbors"]
    self._wrong_hop = calls[self._rng.choice(hops)] if hops else None
    return calls

  def _read(self, reply: str) -> None:
    """Reads the result of the last call: a variable, a list, or an error."""
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
    self._variables[f"#{len(self._variables)}"] = self._last

  def _resolve(self, call: GoldCall) -> GoldCall:
    """Applies names, variable numbers and mistakes to a gold call."""
    name = call.name
    arguments = [
      self._variables.get(text, self._names.get(text, text))
      for text in call.arguments
    ]
    if name == "get_neighbors" and call is self._wrong_hop:
      arguments[1] = self._other(arguments[1], "wrong_relation")
    if name in ("argmax", "argmin"):
      arguments[1] = self._other(arguments[1], "wrong_attribute")
      if "wrong_order" in self._mistakes:
        name = "argmin" if name == "argmax" else "argmax"
    if name == "intersection" and "no_intersection" in self._mistakes:
      arguments[1] = arguments[0]
    return GoldCall(name, tuple(arguments))

  def _other(self, name: str, mistake: str) -> str:
    """Returns another name of the last list if the mistake is active."""
    others = [other for other in self._listed if other not in (name, "")]
    if mistake not in self._mistakes or not others:
      return name
    return self._rng.choice(others)
