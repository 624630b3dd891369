"""How families of models write tool calls, and what their templates expect.

A dialect turns messages into the dicts that a family's chat template reads, and
answers back into messages. A call that cannot be read becomes one without a
name whose arguments are the raw text: the environment tells the policy so.
"""

import dataclasses
import json
import re
from typing import Any, Protocol

from agentrl_jax.data.chat import template
from agentrl_jax.data.grammar.call_grammar import (
  SPACE,
  CallForm,
  text_that_is_no,
)
from agentrl_jax.data.messages import Message, ToolCall, message_to_json
from agentrl_jax.errors import ConfigError


class Dialect(Protocol):
  """One family's way with tool calls."""

  @property
  def form(self) -> CallForm:
    """What an answer that calls looks like."""
    ...

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    """The message as the template's source expects it: one dict or more."""
    ...

  def read(self, text: str, ended_by: str | None) -> Message:
    """The answer that `text` is; `ended_by` is its stop token, if any."""
    ...


class Hermes:
  """Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}`."""

  form = dataclasses.replace(template.CompactTemplate.form, joint="\n")

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    return [_with_objects(message)]

  def read(self, text: str, ended_by: str | None) -> Message:
    del ended_by
    message = template.parse_answer(text)
    content = message.content.rstrip("\n")
    if not message.tool_calls:
      return message
    return Message("assistant", content, message.tool_calls)


class Llama:
  """Llama-3.1 and later: the whole answer is `{"name", "parameters"}`.

  Several objects in a row, with `;` or white space between, are several calls:
  the template takes back one, but what the policy says is kept as it is.
  """

  _TAG = "<|python_tag|>"
  form = CallForm(
    head='{"name": "',
    middle='", "parameters": ',
    tail="}",
    joint="; ",
    may_begin=_TAG,
    after_text=None,
    text=text_that_is_no(rf"{SPACE}*\{{"),
  )

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    return [_with_objects(message)]

  def read(self, text: str, ended_by: str | None) -> Message:
    del ended_by
    body = text.strip().removeprefix(self._TAG).strip()
    tagged = text.lstrip().startswith(self._TAG)
    if not tagged and not (body.startswith("{") and '"name"' in body):
      return Message("assistant", text)
    return Message("assistant", "", self._calls(body))

  def _calls(self, body: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    rest = body
    while rest:
      try:
        found, end = json.JSONDecoder().raw_decode(rest)
      except (ValueError, RecursionError):
        return (*calls, ToolCall("", rest, str(len(calls))))
      calls.append(_call_of(found, "parameters", rest[:end], len(calls)))
      rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return tuple(calls) or (ToolCall("", "", "0"),)


class Glm4:
  """GLM-4-0414: a turn that is a function's name and, below it, its JSON.

  Each of several calls is a turn of the assistant's own, and so is the text
  before them. A tool's reply has the role `observation`, whose marker is also
  how the policy asks for one.
  """

  _TURN, _OBSERVATION = "<|assistant|>", "<|observation|>"
  _CALL = re.compile(r"\s*([^\s{}`]+)[ \t]*\n\s*(\{.*)", re.DOTALL)
  form = CallForm(
    head="",
    middle="\n",
    tail="",
    joint=_TURN,
    after_text=_TURN,
    # As `_CALL` begins.
    text=text_that_is_no(rf"{SPACE}*[^{{}}`\s\x1c-\x1f]+[ \t]*\n{SPACE}*\{{"),
    name=r"[^\s{}`]+",
    markers=(_TURN,),
    stop=_OBSERVATION,
  )

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
      return [{"role": "observation", "content": message.content}]
    said = [{"role": message.role, "content": message.content}]
    calls = [
      {"role": "assistant", "metadata": call.name, "content": call.arguments}
      for call in message.tool_calls
    ]
    return calls if calls and not message.content else said + calls

  def read(self, text: str, ended_by: str | None) -> Message:
    said: list[str] = []
    calls: list[ToolCall] = []
    for n, turn in enumerate(text.split(self._TURN)):
      if match := self._CALL.fullmatch(turn):
        calls.append(self._call(match[1], match[2].rstrip(), len(calls)))
      else:
        said.append(turn.removeprefix("\n") if n else turn)
    if ended_by == self._OBSERVATION and not calls:
      calls = [ToolCall("", said.pop().strip(), "0")]
    return Message("assistant", "".join(said), tuple(calls))

  def _call(self, name: str, arguments: str, number: int) -> ToolCall:
    try:
      json.loads(arguments)
    except (ValueError, RecursionError):
      return ToolCall("", f"{name}\n{arguments}", str(number))
    return ToolCall(name, arguments, str(number))


def dialect_of(source: str) -> Dialect:
  """The dialect of a chat template, told by what its source writes."""
  if "observation" in source and "metadata" in source:
    return Glm4()
  if "ipython" in source and '"parameters"' in source:
    return Llama()
  if template.CALL in source and "<arg_key>" not in source:
    return Hermes()
  raise ConfigError(
    "the model's chat template writes tool calls in no form that is known here:"
    " it has neither <tool_call> with JSON (Qwen2.5, Qwen3), nor ipython and"
    ' "parameters" (Llama-3.1 and later), nor observation and metadata'
    " (GLM-4-0414). Use a model of these families, or give it one of their"
    " templates as chat_template.jinja"
  )


def _with_objects(message: Message) -> dict[str, Any]:
  """OpenAI's form, with arguments as objects: templates write them as JSON."""
  body = message_to_json(message)
  for call in body.get("tool_calls", ()):
    function = call["function"]
    try:
      function["arguments"] = json.loads(function["arguments"])
    except (ValueError, RecursionError):
      continue  # written as it is, for it has no better form
  return body


def _call_of(found: Any, key: str, raw: str, number: int) -> ToolCall:
  """A call from JSON that holds a name and, under `key`, its arguments."""
  if not isinstance(found, dict) or not isinstance(found.get("name"), str):
    return ToolCall("", raw, str(number))
  arguments = found[key] if key in found else found.get("arguments", {})
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments, ensure_ascii=False)
  return ToolCall(found["name"], arguments, str(number))
