"""Base of sessions in which an answer is one tool call, a few answers long."""

import abc
from collections.abc import Mapping
from typing import Any

from agentrl_jax.data.records import Message, Status
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.tools import ToolMistake, read_arguments


class OneCallSession(Session):
  """Plays the first call of each answer; a subclass says what it does.

  An answer without a call, or with arguments that the schema forbids, is
  answered by a message and counts as a turn. Further calls are ignored.

  Args:
    question: the user's first message.
    max_turns: answers until the session ends.
    no_call: the reply to an answer without a call.
  """

  def __init__(self, question: str, *, max_turns: int, no_call: str):
    self._question, self._no_call = question, no_call
    self.turns_left = max_turns

  @abc.abstractmethod
  def play(self, tool: str, arguments: Mapping[str, Any]) -> str | Step:
    """Returns the tool's reply, or the step that ends the session."""

  def go_on(self, reply: Message) -> Step:
    """Returns the step of an answer after which the task is not solved."""
    if self.turns_left > 0:
      return Step((reply,))
    return Step((reply,), status=Status.TASK_LIMIT_REACHED)

  async def reset(self) -> Step:
    return Step((Message("user", self._question),))

  async def step(self, answer: Message) -> Step:
    self.turns_left -= 1
    if not answer.tool_calls:
      return self.go_on(Message("user", self._no_call))
    call = answer.tool_calls[0]
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      played: str | Step = arguments.message
    else:
      played = self.play(call.name, arguments)
    if isinstance(played, Step):
      return played
    return self.go_on(Message("tool", played, tool_call_id=call.id))
