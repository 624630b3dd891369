"""Messages and tools of a chat call, read with nothing left out in silence.

Of a message all fields that OpenAI's own schema has are taken, and a value that
the policy cannot be shown is refused. Clients send back what other servers and
libraries added to an answer: such fields are ignored, and named by
`unknown_fields` for whoever counts them.
"""

from collections.abc import Sequence
from typing import Any

from agentrl_jax.data.messages import (
  Message,
  Tool,
  message_from_json,
  tool_from_json,
)
from agentrl_jax.rollout.openai.fields import wrong
from agentrl_jax.rollout.server.errors import ApiError

# By OpenAI's reference, what `developer` says replaces what `system` said.
_ROLES = {"developer": "system"}
# By OpenAI's reference; `annotations` and `refusal` stand in its answers.
_KNOWN = frozenset(
  {
    *("role", "content", "name", "tool_calls", "tool_call_id"),
    *("refusal", "annotations", "audio", "function_call"),
  }
)
# What cannot be shown to the policy, and what to send instead.
_UNSHOWN = {
  "audio": "send its transcript as the content",
  "function_call": "send it as one of tool_calls",
}


def read_messages(found: Any) -> tuple[Message, ...]:
  """The conversation. Raises `ApiError` naming the message that is wrong."""
  if not isinstance(found, list) or not found:
    raise wrong("messages", found, "a list of at least one message")
  return tuple(_message(n, body) for n, body in enumerate(found))


def unknown_fields(found: Any) -> frozenset[str]:
  """Names of the fields of messages that no schema of OpenAI's has."""
  bodies = found if isinstance(found, list) else []
  return frozenset(
    name
    for body in bodies
    if isinstance(body, dict)
    for name, value in body.items()
    if name not in _KNOWN and value is not None
  )


def read_tools(found: Any) -> tuple[Tool, ...]:
  """The functions that the policy may call."""
  if not isinstance(found, list):
    raise wrong("tools", found, "a list of functions")
  return tuple(_tool(n, body) for n, body in enumerate(found))


def any_strict(tools: Sequence[Any]) -> bool:
  """Whether arguments are to keep to their schemas; `tools` as they came."""
  return any(tool["function"].get("strict") for tool in tools)


def _message(number: int, body: Any) -> Message:
  where = f"messages[{number}]"
  if not isinstance(body, dict) or not isinstance(body.get("role"), str):
    raise wrong(where, body, 'an object with a "role"')
  given = {name: x for name, x in body.items() if x is not None}
  role = given["role"] = _ROLES.get(given["role"], given["role"])
  _refuse_unshown(where, given)
  given["content"] = _content(where, given)
  if role == "tool" and "tool_call_id" not in given:
    raise ApiError(
      f"{where} has no tool_call_id: say which call it answers", param=where
    )
  try:
    return message_from_json(given)
  except (KeyError, TypeError, ValueError) as error:
    raise ApiError(f"{where} cannot be read: {error}", param=where) from error


def _refuse_unshown(where: str, given: dict[str, Any]) -> None:
  for name in ("name", "refusal"):
    if not isinstance(given.get(name, ""), str):
      raise wrong(f"{where}.{name}", given[name], "text")
  for name, instead in _UNSHOWN.items():
    if given.get(name):
      raise ApiError(
        f"{where}.{name} cannot be shown to the policy: {instead}",
        param=f"{where}.{name}",
        code="unsupported_value",
      )


def _content(where: str, given: dict[str, Any]) -> str:
  """The text of a message; a refusal is what was said instead of any."""
  content = given.get("content")
  if content is None or content == "":
    return str(given.get("refusal", ""))
  if isinstance(content, str):
    return content
  if not isinstance(content, list):
    raise wrong(f"{where}.content", content, "text or a list of parts")
  return "".join(_part(where, part) for part in content)


def _part(where: str, part: Any) -> str:
  kind = part.get("type") if isinstance(part, dict) else part
  text = part.get(kind) if kind in ("text", "refusal") else None
  if not isinstance(text, str):
    raise ApiError(
      f"{where}.content has a part of the kind {kind!r}; the policy reads "
      "text and nothing else",
      param=f"{where}.content",
      code="unsupported_value",
    )
  return text


def _tool(number: int, body: Any) -> Tool:
  where = f"tools[{number}]"
  if not isinstance(body, dict) or body.get("type", "function") != "function":
    raise wrong(where, body, "a function; there are no other tools here")
  function = body.get("function")
  if not isinstance(function, dict) or not isinstance(
    function.get("name"), str
  ):
    raise wrong(f"{where}.function", function, 'an object with a "name"')
  given = {name: x for name, x in function.items() if x is not None}
  for name, kind, allowed in (
    ("description", str, "text"),
    ("parameters", dict, "a JSON schema, which is an object"),
    ("strict", bool, "true or false"),
  ):
    if not isinstance(given.get(name, kind()), kind):
      raise wrong(f"{where}.function.{name}", given[name], allowed)
  return tool_from_json({"function": given})
