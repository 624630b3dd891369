"""Scripted answerers: what is right without planning anything.

They read the names of entities and the lists that tools give, as a policy does.
"""

import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.messages import Message, Tool
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


class Wanderer(ScriptedPolicy):
  """Follows relations from the question's first entity, and names the end.

  Args:
    relations: "first" of each list, or a "random" one.
    reads_question: end with the count or the superlative that it asks for.
  """

  def __init__(
    self, *, seed: int, relations: str = "first", reads_question: bool = False
  ):
    super().__init__(seed=seed)
    self._relations, self._reads_question = relations, reads_question
    self._at = ""
    self._last_step: str | None = None

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Looks, follows one relation, takes a last step, and names the result."""
    last = messages[-1].content
    if not self._at:
      self._at = self._pick(last)
      if self._reads_question:
        words = (n for w, n in _LAST_STEPS.items() if w in last.lower())
        self._last_step = next(words, None)
      return self.call("get_relations", variable=self._at)
    found = _NUMBERED.search(last)
    if found:
      self._at = f"#{found[1]}"
      return self._take_last_step()
    if not _LIST.search(last):
      return Message("assistant", "Final Answer: #0")
    name = self._pick(last)
    if self._last_step and self._at.startswith("#"):  # among its attributes
      step, self._last_step = self._last_step, None
      return self.call(step, variable=self._at, attribute=name)
    return self.call("get_neighbors", variable=self._at, relation=name)

  def _take_last_step(self) -> Message:
    if self._last_step == "count":
      self._last_step = None
      return self.call("count", variable=self._at)
    if self._last_step:
      return self.call("get_attributes", variable=self._at)
    return Message("assistant", f"Final Answer: {self._at}")

  def _pick(self, text: str) -> str:
    """A name of the last list in a text."""
    found = _LIST.search(text)
    names = found[1].split(", ") if found else [""]
    return names[0] if self._relations == "first" else self.rng.choice(names)


POLICIES: ScriptedPolicies = {
  "first_relation": Wanderer,
  "random_relation": functools.partial(Wanderer, relations="random"),
  "random_relation_then_asked_step": functools.partial(
    Wanderer, relations="random", reads_question=True
  ),
}
