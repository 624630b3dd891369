"""The rules of a KnowledgeGraph attempt: calls until an answer is named.

Replies, statuses and limits are AgentBench's. There is no tool for the answer:
a text without a call names the variable that holds it, "Final Answer: #k".
"""

import dataclasses
import json
import re
from collections.abc import Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Session, Step
from environments.knowledgegraph.calls import (
  CallMistake,
  KnowledgeBase,
  Variable,
)
from environments.knowledgegraph.engines.store import QueryRefused
from environments.knowledgegraph.grading import f1
from environments.knowledgegraph.problem import Problem
from environments.knowledgegraph.prompts import (
  BAD_ARGUMENTS,
  FAILED_CALL,
  NO_CALL,
  TOOLS,
  UNKNOWN_CALL,
  opening,
)

FINAL_ANSWER = re.compile(r"(?:Find|Final) Answer: #(\d+)")
PARAMETERS = {tool.name: tool.parameters["required"] for tool in TOOLS}
MAX_NAME_CHARS = 1000  # of a wrong name that are repeated
# What AgentBench's object has besides the seven: no "invalid name" there.
OTHER_NAMES = frozenset(
  ["union", "final_execute", "sparql_executor", "task_id", "__dict__"]
) | frozenset(dir(object))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """What an attempt may use, and what it is told."""

  max_rounds: int = 15  # answers of the policy
  system_prompt: str = "upstream"
  one_shot: bool = False  # whether a solved example comes first


class KGSession(Session):
  """One attempt at one question."""

  tools = TOOLS

  def __init__(
    self,
    problem: Problem,
    base: KnowledgeBase,
    rules: Rules,
    *,
    is_synthesised: bool = False,
  ):
    self._problem = problem
    self._base = base
    self._rules = rules
    self._is_synthesised = is_synthesised
    self._variables: list[Variable] = []
    self._num_rounds = 0
    self._num_calls = 0

  async def reset(self) -> Step:
    """Tells the question and the names of the entities in it."""
    messages = opening(
      self._problem.question,
      self._problem.entities,
      system_prompt=self._rules.system_prompt,
      max_rounds=self._rules.max_rounds,
      one_shot=self._rules.one_shot,
    )
    return Step(messages)

  async def step(self, answer: Message) -> Step:
    """Plays all calls of one answer, in order; waits for the store."""
    self._num_rounds += 1
    if not answer.tool_calls:
      named = _final_answer_in(answer.content)
      if named is not None:
        return await self._judged(named)
      replies = [Message("user", NO_CALL)]
    else:
      replies = [await self._played(call) for call in answer.tool_calls]
    if self._num_rounds < self._rules.max_rounds:
      return Step(tuple(replies))
    return self._end(Status.TASK_LIMIT_REACHED, messages=tuple(replies))

  async def _played(self, call: ToolCall) -> Message:
    self._num_calls += 1
    try:
      text = await self._reply_to(call)
    except (CallMistake, QueryRefused) as mistake:
      text = FAILED_CALL.format(error=mistake)
    return Message("tool", text, tool_call_id=call.id)

  async def _reply_to(self, call: ToolCall) -> str:
    arguments = _parse(call.arguments)
    if call.name not in PARAMETERS:
      known = call.name in OTHER_NAMES
      words = BAD_ARGUMENTS if known else UNKNOWN_CALL
      return words.format(name=_printable(call.name))
    values: list[object] = []
    for parameter in PARAMETERS[call.name]:
      given = _as_mapping(arguments)
      if parameter not in given:
        return BAD_ARGUMENTS.format(name=call.name)
      values.append(self._meant_by(given[parameter]))
    reply = await self._base.call(call.name, values)
    if reply.variable is None:
      return reply.text
    self._variables.append(reply.variable)
    return reply.text.replace("##", f"#{len(self._variables) - 1}")

  def _meant_by(self, value: object) -> object:
    """A variable by its number, an entity by its name, or the value itself."""
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

  async def _judged(self, number: str) -> Step:
    try:
      variable = self._variable(number)
      found = await self._base.answers(variable)
    except (CallMistake, QueryRefused):
      return self._end(Status.AGENT_VALIDATION_FAILED)
    wanted = self._problem.answers
    return self._end(
      Status.COMPLETED, reward=float(found == wanted), score=f1(found, wanted)
    )

  def _end(
    self,
    status: Status,
    *,
    reward: float = 0.0,
    score: float = 0.0,
    messages: Sequence[Message] = (),
  ) -> Step:
    metrics = {
      "f1": score,
      "synthesised": float(self._is_synthesised),
      "num_calls": float(self._num_calls),
      f"right/{self._problem.kind}": reward,
    }
    return Step(tuple(messages), reward=reward, status=status, metrics=metrics)


def _final_answer_in(text: str) -> str | None:
  """The number of the first variable that is named as the answer.

  What follows an observation that the policy made up does not count.
  """
  own = text.split("Observation:")[0].replace("\\_", "_")
  found = FINAL_ANSWER.search(own)
  return found[1] if found else None


def _printable(name: str) -> str:
  """A name that a policy made up: not endless, of whole characters."""
  return name[:MAX_NAME_CHARS].encode(errors="replace").decode()


def _parse(text: str) -> object:
  try:
    arguments = json.loads(text)
    json.dumps(arguments, ensure_ascii=False).encode()  # half a pair of UTF-16
  except (ValueError, RecursionError) as error:
    raise CallMistake(str(error)) from error
  return arguments


def _as_mapping(arguments: object) -> dict[str, object]:
  """The arguments by name, or what Python 3.10 says of another type."""
  match arguments:
    case dict():
      return arguments
    case list():
      raise CallMistake("list indices must be integers or slices, not str")
    case str():
      raise CallMistake("string indices must be integers")
  raise CallMistake(f"'{type(arguments).__name__}' object is not subscriptable")
