"""Rules of an OS episode: bash commands until an answer or the end of the work.

Replies, statuses and limits are AgentBench's; only the first call of an answer
is played, as there.
"""

import abc
import json
import types
from collections.abc import Mapping
from typing import Any

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from environments.options import OSInteractionOptions
from environments.os_interaction import prompts
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines.machine import MachineLost
from environments.os_interaction.machines.shell import Ending, Shell
from environments.os_interaction.tasks.problem import OSProblem


class ShellSession(Session):
  """Commands of bash, until a call of another tool ends the episode."""

  max_output_chars = prompts.MAX_CHARS

  def __init__(
    self, opening: tuple[Message, ...], shell: Shell, max_rounds: int
  ):
    self._opening = opening
    self._shell = shell
    self._max_rounds = max_rounds
    self._num_rounds = 0
    self._num_commands = 0
    self._num_stopped = 0

  @abc.abstractmethod
  async def play(self, call: ToolCall, arguments: list[Any]) -> Step:
    """Plays a call that is no command; `arguments` are its values in order."""

  @abc.abstractmethod
  async def require_engine(self) -> None:
    """Raises `EnvironmentFault` if the engine has lost the machine."""

  async def reset(self) -> Step:
    return Step(self._opening)

  async def step(self, answer: Message) -> Step:
    """Plays the first call of an answer; waits for its command."""
    self._num_rounds += 1
    if not answer.tool_calls:
      return self._continue(Message("user", prompts.NO_CALL))
    call = answer.tool_calls[0]
    try:
      arguments = _arguments_of(call, has_thought=bool(answer.content))
      if isinstance(arguments, str):
        return self.reply(call, arguments)
      if call.name == prompts.BASH_ACTION.name and arguments:
        return self.reply(call, await self._execute(arguments[0]))
      return await self.play(call, arguments)
    except MachineLost as error:
      await self.require_engine()
      reply = Message("tool", prompts.output(str(error)), tool_call_id=call.id)
      return self.end(0.0, Status.AGENT_INVALID_ACTION, (reply,))

  async def _execute(self, script: object) -> str:
    if not isinstance(script, str):
      return prompts.output("")
    try:
      script.encode()
    except UnicodeEncodeError:  # a surrogate
      return prompts.BAD_CALL
    self._num_commands += 1
    reply = await self._shell.execute(script)
    self._num_stopped += reply.ending is not Ending.COMPLETED
    note = f"\n[{reply.note}]" if reply.note else ""
    return prompts.output(reply.text, self.max_output_chars) + note

  def reply(self, call: ToolCall, text: str) -> Step:
    """Returns the reply to a call, or the end at the limit of rounds."""
    return self._continue(Message("tool", text, tool_call_id=call.id))

  def _continue(self, reply: Message) -> Step:
    if self._num_rounds < self._max_rounds:
      return Step((reply,))
    return self.end(0.0, Status.TASK_LIMIT_REACHED, (reply,))

  def end(
    self,
    reward: float,
    status: Status = Status.COMPLETED,
    replies: tuple[Message, ...] = (),
    metrics: Mapping[str, float] = types.MappingProxyType({}),
  ) -> Step:
    """Returns the last step."""
    counts = {
      "num_commands": float(self._num_commands),
      "num_stopped": float(self._num_stopped),
      "machine_lost": float(status is Status.AGENT_INVALID_ACTION),
    }
    return Step(
      replies, reward=reward, status=status, metrics={**counts, **metrics}
    )


class OSSession(ShellSession):
  """One episode of one problem, on a machine that is set up."""

  tools = prompts.TOOLS

  def __init__(
    self,
    problem: OSProblem,
    judge: Judge,
    shell: Shell,
    options: OSInteractionOptions,
  ):
    opening = prompts.opening(problem.description, options.system_prompt)
    super().__init__(opening, shell, options.max_rounds)
    self._problem = problem
    self._judge = judge
    self._options = options

  async def require_engine(self) -> None:
    await self._judge.require_engine()

  async def play(self, call: ToolCall, arguments: list[Any]) -> Step:
    first = arguments[0] if arguments else None
    if call.name == prompts.FINISH_ACTION.name:
      if self._problem.match is None or self._options.upstream_quirks:
        return self.end(float(await self._judge.is_solved(first)))
      return self.reply(call, prompts.NEEDS_ANSWER)
    if call.name == prompts.ANSWER_ACTION.name and arguments:
      return self.end(float(await self._judge.is_solved(first)))
    return self.reply(call, prompts.BAD_CALL)


def _arguments_of(call: ToolCall, *, has_thought: bool) -> list[Any] | str:
  """Returns the values of a call's arguments, or a reply to a broken call.

  AgentBench replies with the message of Python's exception, word for word.
  """
  try:
    arguments = json.loads(call.arguments)
  except (ValueError, RecursionError) as error:
    return str(error)
  if isinstance(arguments, dict):
    return list(arguments.values())
  kind = type(arguments).__name__
  if not has_thought and not isinstance(arguments, str | list):
    return f"argument of type '{kind}' is not iterable"
  return f"'{kind}' object has no attribute 'values'"
