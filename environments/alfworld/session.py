"""The rules of an ALFWorld attempt: one action a turn, until the goal is met.

Replies, statuses and limits are AgentBench's. Only the first call of an answer
counts, whatever the tool's and the argument's names.
"""

import dataclasses
import json
from collections.abc import Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Session, Step
from environments.alfworld.action_matching import snap
from environments.alfworld.engines.engine import Play
from environments.alfworld.engines.narration import NOTHING_HAPPENS
from environments.alfworld.prompts import (
  BAD_CALL,
  NO_CALL,
  TOOLS,
  opening,
  reply,
)

REPEATS = 3  # of one action in a row end the attempt, from the fourth on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """What an attempt may use, and how it is judged."""

  max_rounds: int = 20  # answers of the policy
  system_prompt: str = "upstream"
  upstream_quirks: bool = False  # one bad answer spoils the status for good


class ALFSession(Session):
  """One attempt at one game."""

  tools = TOOLS

  def __init__(self, play: Play, rules: Rules, *, kind: str):
    self._play = play
    self._rules = rules
    self._kind = kind  # of task, for the metrics
    self._commands: Sequence[str] = ()
    self._num_rounds = 0
    self._written: list[str] = []  # actions, as the policy wrote them
    self._num_idle = 0  # actions that changed nothing
    self._spoilt: Status | None = None  # by a bad answer

  async def reset(self) -> Step:
    """Tells the room and the task."""
    scene = await self._play.begin()
    self._commands = scene.commands
    return Step(
      opening(scene.feedback, scene.commands, self._rules.system_prompt)
    )

  async def step(self, answer: Message) -> Step:
    """Plays one action; waits for the engine."""
    self._num_rounds += 1
    if not answer.tool_calls:
      return self._refused(NO_CALL, Status.AGENT_VALIDATION_FAILED)
    call = answer.tool_calls[0]
    written = _argument_of(call)
    if written is None:
      return self._refused(BAD_CALL, Status.AGENT_INVALID_ACTION)
    return await self._played(call, written)

  async def _played(self, call: ToolCall, written: str) -> Step:
    scene = await self._play.act(snap(written, self._commands))
    self._commands = scene.commands
    self._written.append(written)
    self._num_idle += NOTHING_HAPPENS in scene.feedback
    text = reply(scene.feedback, scene.commands)
    replies = (Message("tool", text, tool_call_id=call.id),)
    repeats = len(self._written) > REPEATS and (
      len(set(self._written[-REPEATS:])) == 1
    )
    if repeats and (self._rules.upstream_quirks or not scene.is_won):
      won = float(scene.is_won)
      return self._end(replies, won, Status.AGENT_INVALID_ACTION)
    if scene.is_won:
      spoilt = self._spoilt if self._rules.upstream_quirks else None
      return self._end(replies, 1.0, spoilt or Status.COMPLETED)
    return self._go_on(replies)

  def _refused(self, text: str, status: Status) -> Step:
    self._spoilt = status
    return self._go_on((Message("user", text),))

  def _go_on(self, replies: tuple[Message, ...]) -> Step:
    if self._num_rounds < self._rules.max_rounds:
      return Step(replies)
    return self._end(replies, 0.0, Status.TASK_LIMIT_REACHED)

  def _end(
    self, replies: tuple[Message, ...], reward: float, status: Status
  ) -> Step:
    metrics = {
      "num_idle_actions": float(self._num_idle),
      f"won/{self._kind}": reward,
    }
    return Step(replies, reward=reward, status=status, metrics=metrics)


def _argument_of(call: ToolCall) -> str | None:
  """The first argument, whatever its name; None if it cannot be played.

  Text that cannot be encoded (half a surrogate pair) counts as malformed.
  """
  try:
    arguments = json.loads(call.arguments)
    json.dumps(arguments, ensure_ascii=False).encode()
  except (ValueError, RecursionError):
    return None
  if not isinstance(arguments, dict) or not arguments:
    return None
  first = next(iter(arguments.values()))
  return first if isinstance(first, str) else None
