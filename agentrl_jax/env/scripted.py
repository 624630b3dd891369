"""Scripted policies: baselines that show how easy the tasks are.

A scripted policy reads messages and tools, as a policy does, and knows nothing
else of the task. If a policy of a few lines often succeeds, the tasks measure
little: `python -m launch.evaluate --policy=scripted` plays them all and prints
the table that an environment's README has. These policies fit any environment,
and answer in text where there are no tools; `Environment.scripted_policies`
adds those of its own.
"""

import abc
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Message, Tool, ToolCall

TRIVIAL_SUCCESS = 0.3  # a more frequent success gets a warning
_MAX_ITEMS = 1 << 10  # of a list that a schema wants longer


class ToolCaller:
  """Base of scripted players, which numbers their tool calls."""

  num_calls = 0  # so far; the ids of calls count them

  def call(self, tool: str, /, **arguments: Any) -> Message:
    """Returns a call of one tool, whose arguments may have any name."""
    text = json.dumps(arguments, ensure_ascii=False)
    return Message("assistant", tool_calls=(self.write_call(tool, text),))

  def write_call(self, tool: str, arguments: str) -> ToolCall:
    """Returns a call with the next id; its arguments are any text."""
    self.num_calls += 1
    return ToolCall(tool, arguments, id=f"call_{self.num_calls}")


class ScriptedPolicy(ToolCaller, abc.ABC):
  """Player of one episode; `seed` is all its randomness."""

  def __init__(self, *, seed: int):
    self.rng = random.Random(seed)

  @abc.abstractmethod
  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Returns the next answer to all messages so far."""


ScriptedPolicies = Mapping[str, Callable[..., ScriptedPolicy]]


class Constant(ScriptedPolicy):
  """Calls one tool with the same arguments again and again.

  Args:
    tool: its name; None takes the last tool, which often ends the episode.
    arguments: of the call; None takes zeros, empty texts and empty lists.
  """

  def __init__(
    self,
    *,
    seed: int,
    tool: str | None = None,
    arguments: Mapping[str, Any] | None = None,
  ):
    super().__init__(seed=seed)
    self._tool, self._arguments = tool, arguments

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Repeats the call, whatever the messages say; without tools says 0."""
    if not tools:
      return Message("assistant", "0")
    tool = find_tool(tools, self._tool)
    if self._arguments is not None:
      return self.call(tool.name, **self._arguments)
    return self.call(tool.name, **fill(tool.parameters, _zero))


class Echo(ScriptedPolicy):
  """Calls one tool with the user's last message as every text argument.

  Args:
    tool: its name; None takes the last tool.
  """

  def __init__(self, *, seed: int, tool: str | None = None):
    super().__init__(seed=seed)
    self._tool = tool

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls the tool with the text of the user's last message, or says it."""
    texts = [m.content for m in messages if m.role == "user"]
    if not tools:
      return Message("assistant", texts[-1] if texts else "")
    tool = find_tool(tools, self._tool)

    def echoed(schema: Mapping[str, Any]) -> Any:
      is_text = _kind(schema) == "string" and "enum" not in schema
      return texts[-1] if is_text and texts else _zero(schema)

    return self.call(tool.name, **fill(tool.parameters, echoed))


class RandomCall(ScriptedPolicy):
  """Calls a random tool with random arguments that its schema allows.

  Texts are words and numbers from the messages.
  """

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls a random tool with random arguments, or says a random word."""
    words = [
      w.strip(".,:;?!()'\"") for m in messages for w in m.content.split()
    ]
    words = [word for word in words if word]
    if not tools:
      return Message("assistant", self._draw(words, {}))
    tool = self.rng.choice(tools)
    drawn = functools.partial(self._draw, words)
    return self.call(tool.name, **fill(tool.parameters, drawn))

  def _draw(self, words: Sequence[str], schema: Mapping[str, Any]) -> Any:
    if choices := _choices(schema):
      return self.rng.choice(choices)
    match _kind(schema):
      case "integer" | "number":
        numbers = [int(w) for w in words if w.isdecimal() and len(w) < 10]
        low = schema.get("minimum", 0)
        high = schema.get("maximum", max([*numbers, low + 10]))
        return self.rng.randint(int(low), int(max(low, high)))
      case "boolean":
        return self.rng.random() < 0.5
      case "string":
        return self.rng.choice(words) if words else ""
    return _zero(schema)


def find_tool(tools: Sequence[Tool], name: str | None) -> Tool:
  """Returns the tool with this name, else the last one."""
  return next((tool for tool in tools if tool.name == name), tools[-1])


def fill(
  parameters: Mapping[str, Any], value_of: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
  """Makes a value for each required argument from the argument's schema."""
  # `Tool` checks its own schema, and not those of objects in it.
  properties, required = (
    parameters.get("properties"),
    parameters.get("required"),
  )
  schemas = properties if isinstance(properties, Mapping) else {}
  names = required if isinstance(required, list) else []
  return {name: _value(schemas.get(name), value_of) for name in names}


def _value(schema: Any, value_of: Callable[[Mapping[str, Any]], Any]) -> Any:
  if not isinstance(schema, Mapping):
    return value_of({})
  if _kind(schema) == "object":
    return fill(schema, value_of)
  if _kind(schema) == "array":
    num_items = min(max(1, schema.get("minItems", 0)), _MAX_ITEMS)
    return [_value(schema.get("items"), value_of)] * num_items
  return value_of(schema)


def _kind(schema: Mapping[str, Any]) -> str:
  kind = schema.get("type")
  if isinstance(kind, list) and kind:
    kind = kind[0]
  return kind if isinstance(kind, str) else "string"


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
  choices = schema.get("enum")
  return choices if isinstance(choices, list) else []


def _zero(schema: Mapping[str, Any]) -> Any:
  if choices := _choices(schema):
    return choices[0]
  zeros = {"boolean": False, "null": None}
  kind = _kind(schema)
  if kind in ("integer", "number"):
    return max(0, schema.get("minimum", 0))
  return zeros.get(kind, "")


GENERIC: ScriptedPolicies = {
  "constant": Constant,
  "echo": Echo,
  "random": RandomCall,
}
