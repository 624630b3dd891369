"""Session of one KnowledgeGraph task: tool calls until the policy answers.

Replies, statuses and limits are AgentBench's. No tool gives the answer: a text
without a call names the variable that holds it, "Final Answer: #k".
"""

import re
from collections.abc import Sequence, Set

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.tools import parse_any
from environments.knowledgegraph import prompts
from environments.knowledgegraph.calls import (
  CallMistake,
  KnowledgeBase,
  Variable,
)
from environments.knowledgegraph.engines.store import QueryRefused
from environments.knowledgegraph.problem import KGProblem
from environments.options import KnowledgeGraphOptions

FINAL_ANSWER = re.compile(r"(?:Find|Final) Answer: #(\d+)")
PARAMETERS = {tool.name: tool.parameters["required"] for tool in prompts.TOOLS}
MAX_NAME_CHARS = 1000  # of an unknown tool's name that are repeated
# Attributes of AgentBench's API object, which it does not report as unknown.
OTHER_NAMES = frozenset(
  ["union", "final_execute", "sparql_executor", "task_id", "__dict__"]
) | frozenset(dir(object))


class KGSession(Session):
  """One session about one question."""

  tools = prompts.TOOLS

  def __init__(
    self,
    problem: KGProblem,
    base: KnowledgeBase,
    options: KnowledgeGraphOptions,
  ):
    self._problem = problem
    self._base = base
    self._options = options
    self._variables: list[Variable] = []
    self._num_rounds = 0
    self._num_calls = 0

  async def reset(self) -> Step:
    messages = prompts.opening(
      self._problem.question,
      self._problem.entities,
      system_prompt=self._options.system_prompt,
      max_rounds=self._options.max_rounds,
      one_shot=self._options.one_shot,
    )
    return Step(messages)

  async def step(self, answer: Message) -> Step:
    """Runs all calls of one answer, in order; waits for the store."""
    self._num_rounds += 1
    if not answer.tool_calls:
      number = _final_answer_in(answer.content)
      if number is not None:
        return await self._grade(number)
      replies = [Message("user", prompts.NO_CALL)]
    else:
      replies = [await self._run(call) for call in answer.tool_calls]
    if self._num_rounds < self._options.max_rounds:
      return Step(tuple(replies))
    return self._end(Status.TASK_LIMIT_REACHED, messages=tuple(replies))

  async def _run(self, call: ToolCall) -> Message:
    self._num_calls += 1
    try:
      text = await self._reply_to(call)
    except (CallMistake, QueryRefused) as mistake:
      text = prompts.FAILED_CALL.format(error=mistake)
    return Message("tool", text, tool_call_id=call.id)

  async def _reply_to(self, call: ToolCall) -> str:
    try:
      arguments = parse_any(call)
    except ValueError as error:
      raise CallMistake(str(error)) from error
    if call.name not in PARAMETERS:
      is_known = call.name in OTHER_NAMES
      template = prompts.BAD_ARGUMENTS if is_known else prompts.UNKNOWN_CALL
      return template.format(name=call.name[:MAX_NAME_CHARS])
    values: list[object] = []
    for parameter in PARAMETERS[call.name]:
      named = _as_mapping(arguments)
      if parameter not in named:
        return prompts.BAD_ARGUMENTS.format(name=call.name)
      values.append(self._resolve(named[parameter]))
    reply = await self._base.call(call.name, values)
    if reply.variable is None:
      return reply.text
    self._variables.append(reply.variable)
    return reply.text.replace("##", f"#{len(self._variables) - 1}")

  def _resolve(self, value: object) -> object:
    """Returns a variable by its number, an entity's id, or the value itself."""
    if isinstance(value, str):
      if value.startswith("#"):
        return self._variable(value[1:])
      return self._problem.entities.get(value, value)
    if isinstance(value, list | dict):
      raise CallMistake(f"unhashable type: '{type(value).__name__}'")
    return value

  def _variable(self, number: str) -> Variable:
    try:
      return self._variables[int(number)]  # negative ones count from the end
    except (ValueError, IndexError) as error:
      raise CallMistake(str(error)) from error

  async def _grade(self, number: str) -> Step:
    try:
      variable = self._variable(number)
      answers = await self._base.answers(variable)
    except (CallMistake, QueryRefused):
      return self._end(Status.AGENT_VALIDATION_FAILED)
    gold = self._problem.answers
    return self._end(
      Status.COMPLETED, reward=float(answers == gold), f1=_f1(answers, gold)
    )

  def _end(
    self,
    status: Status,
    *,
    reward: float = 0.0,
    f1: float = 0.0,
    messages: Sequence[Message] = (),
  ) -> Step:
    metrics = {
      "f1": f1,
      "num_calls": float(self._num_calls),
      f"right/{self._problem.kind}": reward,
    }
    return Step(tuple(messages), reward=reward, status=status, metrics=metrics)


def _f1(answers: Set[str], gold: Set[str]) -> float:
  num_right = len(answers & gold)
  if not num_right:
    return 0.0
  precision, recall = num_right / len(answers), num_right / len(gold)
  return 2 * precision * recall / (precision + recall)


def _final_answer_in(text: str) -> str | None:
  """Returns the number of the first variable that the text names as the answer.

  Text after an observation that the policy invented does not count.
  """
  own = text.split("Observation:")[0].replace("\\_", "_")
  match = FINAL_ANSWER.search(own)
  return match[1] if match else None


def _as_mapping(arguments: object) -> dict[str, object]:
  """Returns the arguments by name, or raises Python 3.10's error message."""
  match arguments:
    case dict():
      return arguments
    case list():
      raise CallMistake("list indices must be integers or slices, not str")
    case str():
      raise CallMistake("string indices must be integers")
  raise CallMistake(f"'{type(arguments).__name__}' object is not subscriptable")
