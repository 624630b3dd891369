"""Scripted baselines of KnowledgeGraph, which answer without a plan.

They read the entities of the question and the lists of tools, as a policy does.
"""

import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import ScriptedPolicies, ScriptedPolicy

_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_NUMBERED = re.compile(r"variable #(\d+)")
_LAST_STEPS = {
  "how many": "count",
  "number of": "count",
  "highest": "argmax",
  "latest": "argmax",
  "lowest": "argmin",
  "earliest": "argmin",
}


class RelationFollower(ScriptedPolicy):
  """Follows a relation of the question's first entity, and names the result.

  Args:
    relations: "first" of each list, or a "random" one.
    reads_question: end with the count or the superlative that it asks for.
  """

  def __init__(
    self, *, seed: int, relations: str = "first", reads_question: bool = False
  ):
    super().__init__(seed=seed)
    self._relations, self._reads_question = relations, reads_question
    self._subject = ""  # an entity, or the newest variable
    self._last_step: str | None = None

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Lists relations, follows one, takes a last step, and names the result."""
    last = messages[-1].content
    if not self._subject:
      self._subject = self._pick(last)
      if self._reads_question:
        words = (n for w, n in _LAST_STEPS.items() if w in last.lower())
        self._last_step = next(words, None)
      return self.call("get_relations", variable=self._subject)
    number = _NUMBERED.search(last)
    if number:
      self._subject = f"#{number[1]}"
      return self._take_last_step()
    if not _LIST.search(last):
      return Message("assistant", "Final Answer: #0")
    name = self._pick(last)
    if self._last_step and self._subject.startswith("#"):  # of attributes
      step, self._last_step = self._last_step, None
      return self.call(step, variable=self._subject, attribute=name)
    return self.call("get_neighbors", variable=self._subject, relation=name)

  def _take_last_step(self) -> Message:
    if self._last_step == "count":
      self._last_step = None
      return self.call("count", variable=self._subject)
    if self._last_step:
      return self.call("get_attributes", variable=self._subject)
    return Message("assistant", f"Final Answer: {self._subject}")

  def _pick(self, text: str) -> str:
    listing = _LIST.search(text)
    names = listing[1].split(", ") if listing else [""]
    return names[0] if self._relations == "first" else self.rng.choice(names)


POLICIES: ScriptedPolicies = {
  "first_relation": RelationFollower,
  "random_relation": functools.partial(RelationFollower, relations="random"),
  "random_relation_then_asked_step": functools.partial(
    RelationFollower, relations="random", reads_question=True
  ),
}
