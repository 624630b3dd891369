"""Rules of an ALFWorld episode: one action per turn until the goal is reached.

Replies, statuses and limits are AgentBench's. Only the first call of an answer
counts, under any tool name and any argument name.
"""

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.tools import parse_any
from environments.alfworld import prompts
from environments.alfworld.action_matching import match_action
from environments.alfworld.household import NOTHING_HAPPENS, Household
from environments.options import ALFWorldOptions

REPEATS = 3  # of one action in a row end the episode, from the fourth action on


class ALFSession(Session):
  """One episode of one game."""

  tools = prompts.TOOLS

  def __init__(
    self, household: Household, options: ALFWorldOptions, *, kind: str
  ):
    self._household = household
    self._options = options
    self._kind = kind  # task type, for the metrics
    self._num_rounds = 0
    self._written: list[str] = []  # actions, as the policy wrote them
    self._num_idle = 0  # actions that changed nothing
    self._bad_status: Status | None = None  # of the last bad answer

  async def reset(self) -> Step:
    """Describes the room and the task."""
    home = self._household
    return Step(
      prompts.opening(home.intro, home.commands, self._options.system_prompt)
    )

  async def step(self, answer: Message) -> Step:
    """Plays one action."""
    self._num_rounds += 1
    if not answer.tool_calls:
      return self._refuse(prompts.NO_CALL, Status.AGENT_VALIDATION_FAILED)
    call = answer.tool_calls[0]
    written = _argument_of(call)
    if written is None:
      return self._refuse(prompts.BAD_CALL, Status.AGENT_INVALID_ACTION)
    return self._act(call, written)

  def _act(self, call: ToolCall, written: str) -> Step:
    home = self._household
    feedback = home.act(match_action(written, home.commands))
    self._written.append(written)
    self._num_idle += NOTHING_HAPPENS in feedback
    text = prompts.reply(feedback, home.commands)
    replies = (Message("tool", text, tool_call_id=call.id),)
    is_repeated = len(self._written) > REPEATS and (
      len(set(self._written[-REPEATS:])) == 1
    )
    if is_repeated and (self._options.upstream_quirks or not home.is_won):
      reward = float(home.is_won)
      return self._end(replies, reward, Status.AGENT_INVALID_ACTION)
    if home.is_won:
      bad_status = self._bad_status if self._options.upstream_quirks else None
      return self._end(replies, 1.0, bad_status or Status.COMPLETED)
    return self._go_on(replies)

  def _refuse(self, text: str, status: Status) -> Step:
    self._bad_status = status
    return self._go_on((Message("user", text),))

  def _go_on(self, replies: tuple[Message, ...]) -> Step:
    if self._num_rounds < self._options.max_rounds:
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
  """Reads the first argument of any name; None if it cannot be played."""
  try:
    arguments = parse_any(call)
  except ValueError:
    return None
  if not isinstance(arguments, dict) or not arguments:
    return None
  first = next(iter(arguments.values()))
  return first if isinstance(first, str) else None
