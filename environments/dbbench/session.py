"""Runs one DBBench episode: SQL statements until an answer is committed.

Replies, statuses and limits are AgentBench's. The tool calls of one answer run
in order, up to the one that commits.
"""

import dataclasses
from collections.abc import Awaitable, Callable

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.tools import parse_any
from environments.dbbench import prompts
from environments.dbbench.engines import connector
from environments.dbbench.engines.base import Database
from environments.dbbench.grading import is_right
from environments.dbbench.problem import DBProblem
from environments.options import DBBenchOptions


class DBSession(Session):
  """One session on a database of its own."""

  tools = prompts.TOOLS

  def __init__(
    self,
    problem: DBProblem,
    database: Database,
    options: DBBenchOptions,
    *,
    gold_hash: Callable[[DBProblem], Awaitable[str]],
  ):
    self._problem = problem
    self._database = database
    self._options = options
    self._gold_hash = gold_hash
    self._num_rounds = 0
    self._num_statements = 0

  async def reset(self) -> Step:
    """Returns the opening messages: the table and the question."""
    return Step(prompts.opening(self._problem, self._options.system_prompt))

  async def step(self, answer: Message) -> Step:
    """Runs the tool calls of one answer; waits for their statements."""
    self._num_rounds += 1
    replies: list[Message] = []
    if not answer.tool_calls:
      replies.append(Message("user", prompts.NO_CALL))
    for call in answer.tool_calls:
      argument = _argument_of(call)
      is_readable = not isinstance(argument, UnreadableArguments)
      if call.name == prompts.COMMIT_FINAL_ANSWER.name and is_readable:
        return await self._graded(argument, tuple(replies))
      reply = await self._reply_to(call.name, argument)
      replies.append(Message("tool", reply, tool_call_id=call.id))
    if self._num_rounds < self._options.max_rounds:
      return Step(tuple(replies))
    return self._end(tuple(replies), 0.0, Status.TASK_LIMIT_REACHED)

  async def _reply_to(self, name: str, argument: object) -> str:
    if argument == UnreadableArguments():
      return prompts.BAD_CALL
    if name not in (tool.name for tool in prompts.TOOLS):
      return prompts.UNKNOWN_CALL
    if (
      isinstance(argument, UnreadableArguments)
      and name == prompts.EXECUTE_SQL.name
    ):
      return argument.while_executing
    if (
      isinstance(argument, UnreadableArguments)
      or name != prompts.EXECUTE_SQL.name
    ):
      return prompts.BAD_CALL
    self._num_statements += 1
    return await connector.execute(self._database, argument)

  async def _graded(self, answer: object, replies: tuple[Message, ...]) -> Step:
    problem = self._problem
    if problem.is_mutation:
      gold_hash = problem.table_hash or await self._gold_hash(problem)
      right = await self._database.hash_of(problem.tables) == gold_hash
    else:
      right = is_right(
        answer, problem.label, upstream_quirks=self._options.upstream_quirks
      )
    return self._end(replies, float(right), Status.COMPLETED)

  def _end(
    self, replies: tuple[Message, ...], reward: float, status: Status
  ) -> Step:
    metrics = {
      "num_statements": float(self._num_statements),
      f"right/{self._problem.type}": reward,
    }
    return Step(replies, reward=reward, status=status, metrics=metrics)


@dataclasses.dataclass(frozen=True)
class UnreadableArguments:
  """Arguments of a tool call that have no first value."""

  while_executing: str = ""  # AgentBench's reply if the tool is execute_sql


def _argument_of(call: ToolCall) -> object:
  """Returns the first argument, whatever its name, as AgentBench does."""
  try:
    arguments = parse_any(call)
  except ValueError:
    return UnreadableArguments()
  if not isinstance(arguments, dict):
    kind = type(arguments).__name__
    return UnreadableArguments(prompts.NO_VALUES.format(kind))
  if not arguments:
    return UnreadableArguments(prompts.NO_ARGUMENT)
  first: object = next(iter(arguments.values()))
  return first
