"""A tool with which the policy gives a part of its task to a sub-agent.

As in MATPO (arXiv:2510.04678): planner and worker are one policy with two
prompts. The planner calls the tool with a text. A worker reads this text in a
context of its own, uses the environment's tools, and ends with an answer that
has no call; that answer is the tool's reply. So the planner's context holds
what workers found, and not what they read.

Each worker is a line of tokens of the episode. Role `PLANNER` is the first
line, `WORKER` the others.
"""

import dataclasses
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool, ToolCall
from agentrl_jax.data.tool_calls import Flaw
from agentrl_jax.env.tools import ToolMistake, read_arguments
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key

PLANNER, WORKER = "planner", "worker"
_TEXT = "task"  # the tool's argument
NOT_MADE = "This call was not made."


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubagentConfig(Section, section="subagent"):
  """The `subagent` section of the config."""

  tool: str = key(
    "",
    "tool with which the policy gives a part of the task to itself, in a "
    "context of its own, such as delegate; '': there is none",
  )
  description: str = key(
    "Gives a part of the task to an assistant that has the same tools and sees "
    "only this text. Returns the assistant's result.",
    "what the policy reads of the tool",
  )
  system_prompt: str = key(
    "Do the task with the tools. Then answer with the result.",
    "first message of a sub-agent",
  )
  recap: bool = key(
    True, "the sub-agent reads the environment's first messages too"
  )
  max_turns: int = key(
    8, "answers of a sub-agent; all count for episode.max_turns", at_least=1
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.tool and not self.tool.replace("_", "").isalnum():
      raise ConfigError(
        f"subagent.tool={self.tool!r} must be a name of letters, digits and "
        "underscores, such as delegate, or '' for no such tool"
      )

  @property
  def schema(self) -> Tool:
    """The tool as the policy sees it."""
    return Tool(
      self.tool,
      self.description,
      {
        "type": "object",
        "properties": {_TEXT: {"type": "string", "minLength": 1}},
        "required": [_TEXT],
        "additionalProperties": False,
      },
    )

  def tools(self, own: Sequence[Tool]) -> tuple[Tool, ...]:
    """Returns the environment's tools and, if it is used, this one.

    Raises `ConfigError` if the environment has a tool of that name.
    """
    if not self.tool:
      return tuple(own)
    if any(tool.name == self.tool for tool in own):
      raise ConfigError(
        f"subagent.tool={self.tool!r} is the name of a tool of the environment "
        f"({', '.join(tool.name for tool in own)}): choose another"
      )
    return (*own, self.schema)

  def call_in(self, answer: Message) -> ToolCall | None:
    """Returns the call of a sub-agent in an answer, if it has one."""
    named = (call for call in answer.tool_calls if call.name == self.tool)
    return next(named, None) if self.tool else None

  def read(self, answer: Message, call: ToolCall) -> str | ToolMistake:
    """Returns the text for the worker, or the planner's mistake."""
    if len(answer.tool_calls) > 1:
      names = ", ".join(each.name for each in answer.tool_calls)
      return ToolMistake(
        Flaw.WRONG_ARGUMENTS,
        f"Error: {self.tool} must be the only call of an answer; this one "
        f"calls {names}. No call was made.",
      )
    arguments = read_arguments(call, [self.schema])
    if isinstance(arguments, ToolMistake):
      return arguments
    return str(arguments[_TEXT])

  def first_messages(
    self, text: str, first: Sequence[Message]
  ) -> tuple[Message, ...]:
    """Returns what a worker reads first.

    `first` are the messages with which the environment began.
    """
    recap = tuple(first) if self.recap else ()
    system = (
      (Message("system", self.system_prompt),) if self.system_prompt else ()
    )
    if system and recap and recap[0].role == "system":
      recap = recap[1:]  # a template may allow one system message only
    if recap and recap[-1].role == "user":
      joined = f"{recap[-1].content}\n\n{text}"
      return (*system, *recap[:-1], Message("user", joined))
    return (*system, *recap, Message("user", text))

  def nothing_came(self, *, is_long: bool) -> str:
    """Returns the reply for a worker that ended without an answer."""
    if is_long:
      return "Error: the context of the sub-agent is full; it gave no answer."
    return f"Error: the sub-agent gave no answer in {self.max_turns} turns."
