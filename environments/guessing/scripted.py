"""Scripted policies: lazy players, and one that asks for everything in turn."""

import functools
import json
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Constant,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)
from environments.guessing.game import NO, YES


class _ListReader(ScriptedPolicy):
  """Base of players that read the list and the answers so far."""

  def possible(self, messages: Sequence[Message]) -> dict[int, set[str]]:
    """Returns the values of each thing that fits all answers, by number."""
    things = {
      int(number): set(values.split())
      for number, values in re.findall(
        r"(?m)^(\d+): (.+)$", messages[0].content
      )
    }
    for question, reply in zip(messages[1:], messages[2:], strict=False):
      if question.tool_calls and reply.content in (YES, NO):
        value = json.loads(question.tool_calls[0].arguments)["value"]
        is_yes = reply.content == YES
        things = {n: v for n, v in things.items() if (value in v) == is_yes}
    return things

  def questions(self, tools: Sequence[Tool]) -> list[tuple[str, str]]:
    """Returns all pairs of attribute and value, by the order of the schema."""
    properties = tools[0].parameters["properties"]
    names, values = (properties[key]["enum"] for key in ("attribute", "value"))
    each = len(values) // len(names)
    return [(names[i // each], value) for i, value in enumerate(values)]


class FirstFit(_ListReader):
  """Asks one question, and guesses the first thing that fits the answer."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `ask` once, then `guess`."""
    if not self.num_calls:
      attribute, value = self.questions(tools)[0]
      return self.call("ask", attribute=attribute, value=value)
    return self.call("guess", number=min(self.possible(messages)))


class SameQuestion(_ListReader):
  """Asks one question until the last turn but one, then guesses at random."""

  num_questions = 8

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `ask` again and again, then `guess`."""
    if self.num_calls < self.num_questions:
      attribute, value = self.questions(tools)[0]
      return self.call("ask", attribute=attribute, value=value)
    return self.call(
      "guess", number=self.rng.choice([*self.possible(messages)])
    )


class InOrder(_ListReader):
  """Asks for all values in turn while several things are left, then guesses."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `ask` with the next value that tells things apart, or `guess`."""
    possible = self.possible(messages)
    for attribute, value in self.questions(tools):
      num_yes = sum(value in values for values in possible.values())
      if 0 < num_yes < len(possible):
        return self.call("ask", attribute=attribute, value=value)
    return self.call("guess", number=min(possible))


POLICIES: ScriptedPolicies = {
  "constant": functools.partial(
    Constant, tool="guess", arguments={"number": 1}
  ),
  "random": RandomCall,
  "first_fit": FirstFit,
  "same_question": SameQuestion,
  "in_order": InOrder,
}
