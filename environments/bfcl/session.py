"""The rules of a BFCL attempt: a user who asks again once nothing is called.

Within a turn of the user the policy calls functions for as long as it likes, up
to a limit; an answer without a call ends the turn. The verdict comes with the
last one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Session, Step
from environments.bfcl.apis import APIs
from environments.bfcl.calls import read_call
from environments.bfcl.schema import tool_of
from environments.bfcl.scoring import Failure, Referee
from environments.bfcl.suite import Problem

MORE_FUNCTIONS = (
  "I have updated some more functions you can choose from. What about now?"
)
BAD_CALL = "Error: the arguments of this answer's calls are not JSON objects."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Functions:
  """What a task's classes offer: at first, and from some turns on."""

  first: Sequence[Mapping[str, Any]]
  added: Mapping[int, Sequence[Mapping[str, Any]]]


class BFCLSession(Session):
  """One attempt at one task, with the suite's functions of its own."""

  def __init__(self, problem: Problem, functions: Functions, max_steps: int):
    self.tools: tuple[Tool, ...] = tuple(map(tool_of, functions.first))
    self._problem = problem
    self._added = functions.added
    self._max_steps = max_steps
    self._apis = _apis(problem)
    self._referee = Referee(problem.gold, _apis(problem))
    self._turn = 0
    self._num_steps = 0  # of this turn
    self._results: list[str] = []  # of this turn's calls
    self._num_calls = 0
    self._num_right = 0  # turns
    self.failure: Failure | None = None  # the first one

  async def reset(self) -> Step:
    """Tells what the user says first."""
    return Step(self._user_messages())

  async def step(self, answer: Message) -> Step:
    """Plays the calls of one answer, or goes on to the user's next turn."""
    calls = [read_call(call) for call in answer.tool_calls]
    played = [call for call in calls if call is not None]
    if not calls or len(played) < len(calls):
      replies = tuple(
        Message("tool", BAD_CALL, tool_call_id=call.id)
        for call in answer.tool_calls
      )
      return self._next_turn(replies)
    results = [self._apis.call(c.name, c.positional, c.named) for c in played]
    self._results += results
    self._num_calls += len(results)
    self._num_steps += 1
    replies = tuple(
      Message("tool", result, tool_call_id=call.id)
      for call, result in zip(answer.tool_calls, results, strict=True)
    )
    if self._num_steps > self._max_steps:
      self.failure = Failure.STEP_LIMIT
      return self._end(replies, Status.TASK_LIMIT_REACHED)
    return Step(replies)

  def _next_turn(self, replies: tuple[Message, ...]) -> Step:
    failure = self._referee.judge(self._turn, self._results, self._apis)
    self._num_right += failure is None
    self.failure = self.failure or failure
    self._turn += 1
    self._num_steps = 0
    self._results = []
    if self._turn == len(self._problem.questions):
      return self._end(replies, Status.COMPLETED)
    return Step((*replies, *self._user_messages()))

  def _user_messages(self) -> tuple[Message, ...]:
    added = list(self._added.get(self._turn, ()))
    if added:
      self.tools += tuple(tool_of(doc, hint="") for doc in added)
      # The opening, where tools are listed, has long been read.
      return (Message("user", f"{added}\n{MORE_FUNCTIONS}"),)
    said = self._problem.questions[self._turn]
    return tuple(Message("user", text) for text in said)

  def _end(self, replies: tuple[Message, ...], status: Status) -> Step:
    reward = float(self.failure is None)
    num_turns = len(self._problem.questions)
    metrics = {
      "num_calls": float(self._num_calls),
      "right_turns": self._num_right / num_turns,
      f"right/{self._problem.category}": reward,
    }
    return Step(replies, reward=reward, status=status, metrics=metrics)


def _apis(problem: Problem) -> APIs:
  return APIs(problem.classes, problem.config, is_long=problem.is_long)
