"""Calls whose arguments stand between tags: Qwen3-Coder's and GLM-4.5's.

  <tool_call>                          <tool_call>look
  <function=look>                      <arg_key>at</arg_key>
  <parameter=at>                       <arg_value>the door</arg_value>
  the door                             </tool_call>
  </parameter>
  </function>
  </tool_call>

Such a form has no types: a text stands there as it is, all other values as
JSON. So the tool's schema decides what a value is. One that may be a text and
something else is a text only if it is no JSON of the other types.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from agentrl_jax.data.chat import codec
from agentrl_jax.data.chat.call_grammar import CallForm, ParameterForm
from agentrl_jax.data.chat.marked_text import unshield
from agentrl_jax.data.grammar.text_schema import types_of
from agentrl_jax.data.records import (
  Message,
  Tool,
  ToolCall,
  message_to_json,
  unique_members,
)
from agentrl_jax.errors import MessageFault

_SPACE = r"[ \t\n\r]*"
# As templates write them, which print Python's values.
_WORD = re.compile(r"\w+")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclasses.dataclass(frozen=True)
class XmlCalls:
  """A form of such calls. Only canonical whitespace is written, any is read."""

  form: CallForm
  head: str  # regex from after the tag to the first parameter; group 1: a name
  parameter: str  # regex before a value; group 1: its key
  close: str  # regex after the last parameter; the end tag may be cut off
  trims: bool = False  # a line end on either side of a value is none of it

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    """Returns OpenAI's form with objects of arguments, as templates expect.

    Raises `MessageFault` for arguments that this form cannot hold.
    """
    body = message_to_json(message)
    for call in body.get("tool_calls", ()):
      function = call["function"]
      try:
        arguments = json.loads(function["arguments"])
      except (ValueError, RecursionError):
        arguments = None
      if not self._holds(function["name"], arguments):
        raise MessageFault(
          f"the arguments {function['arguments']!r:.200} of a call of "
          f"{function['name']!r} cannot be written in this model's form, where "
          "they are an object, a name is one word, and no text has "
          f"{self._parameter.end}"
        )
      function["arguments"] = arguments
    return [body]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    """Parses an answer; the schemas of `tools` decide the types of values."""
    del ended_by
    schemas = {tool.name: tool.parameters for tool in tools}

    def call_at(text: str, at: int, id: str) -> tuple[ToolCall, int]:
      head = _matched(self.head, text, at)
      name, at = head[1], head.end()
      schema = schemas.get(unshield(name), {})
      members: list[tuple[str, str]] = []
      while match := re.compile(self.parameter).match(text, at):
        value, at = self._value(text, match.end(), schema, unshield(match[1]))
        members.append((match[1], value))
      unique_members(members)
      arguments = ", ".join(
        f"{json.dumps(key, ensure_ascii=False)}: {value}"
        for key, value in members
      )
      end = _matched(self.close, text, at).end()
      return ToolCall(name, f"{{{arguments}}}", id), end

    message = codec.read_tagged_calls(text, call_at)
    if not message.tool_calls:
      return message
    content = message.content.rstrip("\n")
    return Message("assistant", content, message.tool_calls)

  def _holds(self, name: str, arguments: Any) -> bool:
    """Returns whether a call can be written so that it is read as it is."""
    form = self._parameter
    return (
      isinstance(arguments, dict)
      and bool(re.fullmatch(self.form.name, unshield(name)))
      and all(re.fullmatch(form.name, unshield(key)) for key in arguments)
      and not any(
        isinstance(value, str) and form.end in value
        for value in arguments.values()
      )
    )

  @property
  def _parameter(self) -> ParameterForm:
    assert self.form.parameter
    return self.form.parameter

  def _value(
    self, text: str, at: int, schema: Mapping[str, Any], key: str
  ) -> tuple[str, int]:
    """Reads a value as JSON, and where the text goes on behind its end tag."""
    end = self._parameter.end
    if read := _json_value(text, at, end, types_of(schema, key)):
      return read
    stop = text.index(end, at)
    value = text[at:stop]
    if self.trims:
      value = value.removeprefix("\n").removesuffix("\n")
    after = _matched(_SPACE, text, stop + len(end)).end()
    return json.dumps(value, ensure_ascii=False), after


def _json_value(
  text: str, at: int, end: str, kinds: Set[str]
) -> tuple[str, int] | None:
  """Reads a value that is no text; None if there is none of these types."""
  if kinds == {"string"}:
    return None
  start = _matched(_SPACE, text, at).end()
  word = _WORD.match(text, start)
  letters = _PYTHON.get(word[0]) if word else None
  try:
    if word and letters:
      value, stop = json.loads(letters), word.end()
    else:
      value, stop = codec.json_at(text, start)
  except (ValueError, RecursionError):
    return None
  match = re.compile(rf"{_SPACE}{re.escape(end)}{_SPACE}").match(text, stop)
  if match is None or not _fits(value, kinds):
    return None
  return letters or text[start:stop], match.end()


def _matched(pattern: str, text: str, at: int) -> re.Match[str]:
  match = re.compile(pattern).match(text, at)
  if match is None:
    raise ValueError(f"there is no {pattern!r}")
  return match


def _fits(value: Any, kinds: Set[str]) -> bool:
  """Returns whether a value that is no text may have its type."""
  if isinstance(value, int | float) and not isinstance(value, bool):
    return bool(kinds & {"number", "integer"})
  names = {bool: "boolean", dict: "object", list: "array", type(None): "null"}
  return names.get(type(value)) in kinds


_END = rf"{_SPACE}(?:</tool_call>|\Z)"
QWEN_CODER = XmlCalls(
  form=CallForm(
    tag=codec.CALL,
    head="\n<function=",
    middle=">\n",
    tail="</function>\n</tool_call>",
    joint="\n",
    name=r"[^<>\s]+",
    parameter=ParameterForm(
      head="<parameter=",
      middle=">\n",
      end="</parameter>",
      before_end="\n",
      tail="\n",
      name=r"[^<>\s]+",
    ),
  ),
  head=rf"{_SPACE}<function=([^<>\s]+)>{_SPACE}",
  parameter=r"<parameter=([^<>\s]+)>",
  close=rf"</function>{_END}",
  trims=True,
)
GLM_45 = XmlCalls(
  form=CallForm(
    tag=codec.CALL,
    head="",
    middle="\n",
    tail="</tool_call>",
    joint="\n",
    name=r"[^<>\s]+",
    stop="<|observation|>",
    parameter=ParameterForm(
      head="<arg_key>",
      middle="</arg_key>\n<arg_value>",
      end="</arg_value>",
      tail="\n",
      name=r"[^<>\n]+",
    ),
  ),
  head=rf"{_SPACE}([^<>\s]+){_SPACE}(?=<)",
  parameter=rf"<arg_key>([^<>\n]+)</arg_key>{_SPACE}<arg_value>",
  close=r"(?:</tool_call>|\Z)",
)
