"""Scripted policies: baselines that do not add."""

import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Constant,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)

MOST_FREQUENT = 99  # sum of two numbers from 0 to 99


class FirstTerm(ScriptedPolicy):
  """Answers with the first number of the question."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `answer`, which ends the episode."""
    return self.call("answer", value=_numbers_of(messages[0])[0])


class CopyNumbers(ScriptedPolicy):
  """Copies the question's numbers into `add`, and its reply into `answer`."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `add` after the question, `answer` after the tool's reply."""
    a, *others = _numbers_of(messages[-1])
    if others:
      return self.call("add", a=a, b=others[0])
    return self.call("answer", value=a)


def _numbers_of(message: Message) -> list[int]:
  return [int(digits) for digits in re.findall(r"\d+", message.content)]


POLICIES: ScriptedPolicies = {
  "constant": functools.partial(
    Constant, tool="answer", arguments={"value": MOST_FREQUENT}
  ),
  "first_term": FirstTerm,
  "random": RandomCall,
  "copy_numbers": CopyNumbers,
}
