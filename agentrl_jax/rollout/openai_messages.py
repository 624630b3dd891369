"""Messages and tools of a chat call, read with nothing left out in silence."""

from collections.abc import Sequence
from typing import Any

from agentrl_jax.data.messages import (
  Message,
  Tool,
  message_from_json,
  tool_from_json,
)
from agentrl_jax.rollout.openai_errors import ApiError
from agentrl_jax.rollout.openai_fields import wrong

# By OpenAI's reference, what `developer` says replaces what `system` said.
_ROLES = {"developer": "system"}
_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id"})
# What clients send back of an answer of ours, empty as we gave it.
_EMPTY = frozenset({"refusal", "annotations", "audio", "function_call"})


def read_messages(found: Any) -> tuple[Message, ...]:
  """The conversation. Raises `ApiError` naming the message that is wrong."""
  if not isinstance(found, list) or not found:
    raise wrong("messages", found, "a list of at least one message")
  return tuple(_message(n, body) for n, body in enumerate(found))


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
  _refuse_other_fields(where, given)
  _refuse_other_parts(where, given.get("content"))
  if role == "tool" and "tool_call_id" not in given:
    raise ApiError(
      f"{where} has no tool_call_id: say which call it answers", param=where
    )
  try:
    return message_from_json(given)
  except (KeyError, TypeError, ValueError) as error:
    raise ApiError(f"{where} cannot be read: {error}", param=where) from error


def _refuse_other_fields(where: str, given: dict[str, Any]) -> None:
  for name in given.keys() - _KNOWN:
    if name == "name" and given["role"] == "tool":
      continue  # the call that it answers has the same
    if name in _EMPTY and not given[name]:
      continue
    raise ApiError(
      f"{where}.{name} is not known here, and could change what the policy "
      "reads: leave it out",
      param=f"{where}.{name}",
      code="unknown_parameter",
    )


def _refuse_other_parts(where: str, content: Any) -> None:
  if content is None or isinstance(content, str):
    return
  if not isinstance(content, list):
    raise wrong(f"{where}.content", content, "text or a list of parts")
  for part in content:
    kind = part.get("type") if isinstance(part, dict) else part
    if kind != "text" or not isinstance(part.get("text"), str):
      raise ApiError(
        f"{where}.content has a part of the kind {kind!r}; the policy reads "
        "text and nothing else",
        param=f"{where}.content",
        code="unsupported_value",
      )


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
