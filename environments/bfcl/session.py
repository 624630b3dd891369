"""Rules of a BFCL episode: turns of a user, and the verdict on each turn.

Within a turn of the user the policy may call functions, up to a limit of
answers. An answer without a call ends the turn. The last turn ends the episode.

A turn with gold calls is right if the policy called something, if afterwards
both states are equal, and if the result of every gold call is among the results
of the policy's calls so far. A turn without gold calls is always right: its
calls must only not spoil later turns.
"""

import collections
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Message, Status, Tool
from agentrl_jax.env.interface import Session, Step
from environments.bfcl.apis import APIs
from environments.bfcl.calls import parse_source, read_call
from environments.bfcl.suite import BFCLProblem, tool_of

MORE_FUNCTIONS = (
  "I have updated some more functions you can choose from. What about now?"
)
BAD_CALL = "Error: the arguments of this answer's calls are not JSON objects."


class Failure(enum.Enum):
  """Reason that a turn is wrong; values end BFCL's `error_type`."""

  NO_CALL = "empty_turn_model_response"
  STATE = "instance_state_mismatch"
  RESULTS = "execution_response_mismatch"
  STEP_LIMIT = "force_terminated"


class TurnChecker:
  """Plays the gold calls on their own state and compares turn by turn."""

  def __init__(self, gold: Sequence[Sequence[str]], apis: APIs):
    self._gold = gold
    self._apis = apis  # in the initial state of the policy's
    self._results: list[str] = []  # of the policy's calls in all turns

  def check(
    self, turn: int, results: Sequence[str], apis: APIs
  ) -> Failure | None:
    """Checks one turn; turns must be checked in order, each once.

    Args:
      turn: its index.
      results: of the policy's calls in this turn.
      apis: the policy's, after this turn.
    """
    self._results += results
    gold_results = [self._call(source) for source in self._gold[turn]]
    if not gold_results:
      return None
    if not results:
      return Failure.NO_CALL
    if not apis.agrees_with(self._apis):
      return Failure.STATE
    missing = collections.Counter(gold_results)
    missing.subtract(self._results)
    return Failure.RESULTS if max(missing.values()) > 0 else None

  def _call(self, source: str) -> str:
    call = parse_source(source)
    return self._apis.call(call.name, call.positional, call.named)


class BFCLSession(Session):
  """One episode of one task, with its own instances of BFCL's classes.

  Args:
    problem: the task.
    docs: descriptions of all functions of its classes, withheld ones included.
    max_steps: answers with calls within a turn.
  """

  def __init__(
    self,
    problem: BFCLProblem,
    docs: Sequence[Mapping[str, Any]],
    max_steps: int,
  ):
    withheld = set().union(*problem.withheld.values())
    self.tools: tuple[Tool, ...] = tuple(
      tool_of(doc) for doc in docs if doc["name"] not in withheld
    )
    self._problem = problem
    self._docs = {doc["name"]: doc for doc in docs}
    self._max_steps = max_steps
    self._apis = _apis(problem)
    self._checker = TurnChecker(problem.gold, _apis(problem))
    self._turn = 0
    self._num_steps = 0  # of this turn
    self._results: list[str] = []  # of this turn's calls
    self._num_calls = 0
    self._num_right_turns = 0
    self.failure: Failure | None = None  # the first one

  async def reset(self) -> Step:
    """Returns the user's first messages."""
    return Step(self._user_messages())

  async def step(self, answer: Message) -> Step:
    """Plays the calls of one answer, or goes on to the user's next turn."""
    calls = [read_call(call) for call in answer.tool_calls]
    valid_calls = [call for call in calls if call is not None]
    if not calls or len(valid_calls) < len(calls):
      replies = tuple(
        Message("tool", BAD_CALL, tool_call_id=call.id)
        for call in answer.tool_calls
      )
      return self._next_turn(replies)
    results = [
      self._apis.call(c.name, c.positional, c.named) for c in valid_calls
    ]
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
    failure = self._checker.check(self._turn, self._results, self._apis)
    self._num_right_turns += failure is None
    self.failure = self.failure or failure
    self._turn += 1
    self._num_steps = 0
    self._results = []
    if self._turn == len(self._problem.questions):
      return self._end(replies, Status.COMPLETED)
    return Step((*replies, *self._user_messages()))

  def _user_messages(self) -> tuple[Message, ...]:
    names = self._problem.withheld.get(self._turn, ())
    added = [self._docs[name] for name in names if name in self._docs]
    if added:
      self.tools += tuple(tool_of(doc, hint="") for doc in added)
      # The policy has already read the prompt with the tools, so it reads the
      # descriptions of added ones here.
      return (Message("user", f"{added}\n{MORE_FUNCTIONS}"),)
    texts = self._problem.questions[self._turn]
    return tuple(Message("user", text) for text in texts)

  def _end(self, replies: tuple[Message, ...], status: Status) -> Step:
    reward = float(self.failure is None)
    num_turns = len(self._problem.questions)
    metrics = {
      "num_calls": float(self._num_calls),
      "right_turns": self._num_right_turns / num_turns,
      f"right/{self._problem.category}": reward,
    }
    return Step(replies, reward=reward, status=status, metrics=metrics)


def _apis(problem: BFCLProblem) -> APIs:
  return APIs(problem.classes, problem.config, is_long=problem.is_long)
