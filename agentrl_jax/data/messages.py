"""Chat messages, tool calls and tool descriptions, as in OpenAI's API.

`arguments` stays the JSON text that the policy wrote: the environment decides
about text that does not parse.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One tool call of the policy."""

  name: str
  arguments: str  # JSON text, as written by the policy
  id: str = ""


@dataclasses.dataclass(frozen=True)
class Message:
  """One message of a conversation."""

  role: str
  content: str = ""
  tool_calls: tuple[ToolCall, ...] = ()
  tool_call_id: str | None = None  # of the call that a tool's reply answers

  def __post_init__(self) -> None:
    if self.role not in ROLES:
      raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")


@dataclasses.dataclass(frozen=True)
class Tool:
  """A function that the policy may call; `parameters` is a JSON schema."""

  name: str
  description: str
  parameters: Mapping[str, Any]


def message_to_json(message: Message) -> dict[str, Any]:
  """Returns the message in the form of OpenAI's chat API."""
  body: dict[str, Any] = {"role": message.role, "content": message.content}
  if message.tool_calls:
    body["tool_calls"] = [
      {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
      }
      for call in message.tool_calls
    ]
  if message.tool_call_id is not None:
    body["tool_call_id"] = message.tool_call_id
  return body


def message_from_json(body: Mapping[str, Any]) -> Message:
  """Reads OpenAI's form; content is null, text, or a list of text parts."""
  content = body.get("content")
  if isinstance(content, Sequence) and not isinstance(content, str):
    content = "".join(str(part.get("text", "")) for part in content)
  calls = tuple(
    ToolCall(
      name=str(call["function"]["name"]),
      arguments=str(call["function"]["arguments"]),
      id=str(call.get("id", "")),
    )
    for call in body.get("tool_calls") or ()
  )
  return Message(
    role=str(body["role"]),
    content=content or "",
    tool_calls=calls,
    tool_call_id=body.get("tool_call_id"),
  )


def tool_to_json(tool: Tool) -> dict[str, Any]:
  """Returns the tool as an entry of OpenAI's `tools`."""
  return {
    "type": "function",
    "function": {
      "name": tool.name,
      "description": tool.description,
      "parameters": dict(tool.parameters),
    },
  }


def tool_from_json(body: Mapping[str, Any]) -> Tool:
  """Reads one entry of OpenAI's `tools`."""
  function = body["function"]
  return Tool(
    name=str(function["name"]),
    description=str(function.get("description", "")),
    parameters=function.get("parameters", {}),
  )
