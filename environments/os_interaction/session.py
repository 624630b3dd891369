"""Rules of an OS episode: bash commands until an answer or the end of the work.

Replies, statuses and limits are AgentBench's; only the first call of an answer
is played, as there.
"""

import json
from typing import Any

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from environments.options import OSInteractionOptions
from environments.os_interaction import prompts
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines.machine import MachineLost
from environments.os_interaction.machines.shell import Ending, Shell
from environments.os_interaction.tasks.problem import OSProblem


class OSSession(Session):
  """One episode of one problem, on a machine that is set up."""

  tools = prompts.TOOLS

  def __init__(
    self,
    problem: OSProblem,
    judge: Judge,
    shell: Shell,
    options: OSInteractionOptions,
  ):
    self._problem = problem
    self._judge = judge
    self._shell = shell
    self._options = options
    self._num_rounds = 0
    self._num_commands = 0
    self._num_stopped = 0

  async def reset(self) -> Step:
    return Step(
      prompts.opening(self._problem.description, self._options.system_prompt)
    )

  async def step(self, answer: Message) -> Step:
    """Plays the first call of an answer; waits for its command."""
    self._num_rounds += 1
    if not answer.tool_calls:
      return self._continue(Message("user", prompts.NO_CALL))
    call = answer.tool_calls[0]
    try:
      return await self._play(call, has_thought=bool(answer.content))
    except MachineLost as error:
      await self._judge.require_engine()
      reply = Message("tool", prompts.output(str(error)), tool_call_id=call.id)
      return self._end((reply,), 0.0, Status.AGENT_INVALID_ACTION)

  async def _play(self, call: ToolCall, *, has_thought: bool) -> Step:
    arguments = _arguments_of(call, has_thought=has_thought)
    if isinstance(arguments, str):
      return self._reply(call, arguments)
    first = arguments[0] if arguments else None
    if call.name == prompts.BASH_ACTION.name and arguments:
      return self._reply(call, await self._execute(first))
    if call.name == prompts.FINISH_ACTION.name:
      if self._problem.match is None or self._options.upstream_quirks:
        return await self._judge_answer(first)
      return self._reply(call, prompts.NEEDS_ANSWER)
    if call.name == prompts.ANSWER_ACTION.name and arguments:
      return await self._judge_answer(first)
    return self._reply(call, prompts.BAD_CALL)

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
    return prompts.output(reply.text) + note

  async def _judge_answer(self, answer: object) -> Step:
    is_solved = await self._judge.is_solved(answer)
    return self._end((), float(is_solved), Status.COMPLETED)

  def _reply(self, call: ToolCall, text: str) -> Step:
    return self._continue(Message("tool", text, tool_call_id=call.id))

  def _continue(self, reply: Message) -> Step:
    if self._num_rounds < self._options.max_rounds:
      return Step((reply,))
    return self._end((reply,), 0.0, Status.TASK_LIMIT_REACHED)

  def _end(
    self, replies: tuple[Message, ...], reward: float, status: Status
  ) -> Step:
    metrics = {
      "num_commands": float(self._num_commands),
      "num_stopped": float(self._num_stopped),
      "machine_lost": float(status is Status.AGENT_INVALID_ACTION),
    }
    return Step(replies, reward=reward, status=status, metrics=metrics)


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
