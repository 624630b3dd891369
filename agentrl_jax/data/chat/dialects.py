"""Tool-call formats of model families.

A dialect converts messages to the dicts that a family's chat template reads,
and answers back to messages. A call that cannot be parsed becomes one without a
name whose arguments are the raw text: the environment then reports the mistake.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from agentrl_jax.data.chat import codec
from agentrl_jax.data.chat.call_grammar import (
  SPACE,
  THINK,
  THINK_END,
  CallForm,
  text_that_is_no,
)
from agentrl_jax.data.chat.xml_calls import GLM_45, QWEN_CODER
from agentrl_jax.data.records import Message, Tool, ToolCall, message_to_json
from agentrl_jax.errors import ConfigError, MessageFault


class Dialect(Protocol):
  """Tool-call format of one family."""

  @property
  def form(self) -> CallForm:
    """Form of an answer with tool calls."""

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    """Returns the message as the template reads it: one dict or more."""

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    """Parses an answer; `ended_by` is its stop marker, if any.

    The schemas of `tools` say what values are, where the form does not.
    """


class Hermes:
  """Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}`."""

  _COMPACT = codec.CompactTemplate()
  form = dataclasses.replace(_COMPACT.form, joint="\n")

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    return [_with_objects(message)]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del tools
    message = self._COMPACT.read(text, ended_by)
    content = message.content.rstrip("\n")
    if not message.tool_calls:
      return message
    return Message("assistant", content, message.tool_calls)


class Llama:
  """Llama-3.1 and later: the whole answer is `{"name", "parameters"}`.

  Several objects in a row, with `;` or white space between, are several calls.
  The template renders one call only, but sampled tokens are never rendered.
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

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del ended_by, tools
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
        call, end = codec.call_at(rest, 0, str(len(calls)))
      except (ValueError, RecursionError):
        return (*calls, ToolCall("", rest, str(len(calls))))
      calls.append(call)
      rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return tuple(calls) or (ToolCall("", "", "0"),)


class Glm4:
  """GLM-4-0414: a turn with a function's name and, on the next line, its JSON.

  Each of several calls is a turn of the assistant, and so is the text before
  them. A tool's reply has the role `observation`, whose marker is also the stop
  token of a call.
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
    text = [{"role": message.role, "content": message.content}]
    calls = [
      {"role": "assistant", "metadata": call.name, "content": call.arguments}
      for call in message.tool_calls
    ]
    return calls if calls and not message.content else text + calls

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del tools
    texts: list[str] = []
    calls: list[ToolCall] = []
    more, mark = text, self._TURN
    while mark:
      is_first = more is text
      thought, rest = codec.split_thoughts(more)
      turn, mark, more = rest.partition(self._TURN)
      if match := self._CALL.fullmatch(turn):
        texts.append(thought)
        name, arguments = match[1], match[2].rstrip()
        raw = f"{name}\n{arguments}"
        calls.append(_checked(name, arguments, raw, len(calls)))
      else:
        said = thought + turn
        texts.append(said if is_first else said.removeprefix("\n"))
    if ended_by == self._OBSERVATION and not calls:
      calls = [ToolCall("", texts.pop().strip(), "0")]
    return Message("assistant", "".join(texts), tuple(calls))


class Harmony:
  """gpt-oss: messages on channels; a call is one with a function's name.

  Those on `analysis` are thoughts, between `<think>` tags in a `Message` as
  other families' are. Those on `commentary` and `final` are its text. The
  template has one call a message, and shows text beside it as a thought.
  """

  _NEXT, _BODY, _CALL = "<|start|>assistant", "<|message|>", "<|call|>"
  _END = re.compile(r"<\|(?:end|call|return)\|>")
  _CHANNEL = re.compile(r"<\|channel\|>(analysis|commentary|final)(?![^\s<])")
  _LETTER = r"(?:[^\s<]|<(?!\|))"  # of a name; `<|` begins a marker
  _TO = re.compile(rf"(?:^|\s)to=({_LETTER}*)")
  _NAMES = "functions."
  form = CallForm(
    head=f" to={_NAMES}",
    middle="<|channel|>commentary json<|message|>",
    also=(
      (f" to={_NAMES}", "<|channel|>commentary <|constrain|>json<|message|>"),
      (f"<|channel|>commentary to={_NAMES}", " <|constrain|>json<|message|>"),
    ),
    tail="",
    after_text=None,
    name=f"{_LETTER}+",
    stop=_CALL,
    thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    text_head="<|channel|>final<|message|>",
    is_alone=True,
    names_replies=True,
  )

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    body = _with_objects(message)
    if message.role != "assistant":
      return [body]
    names = [call.name for call in message.tool_calls]
    if names[1:] or not all(
      re.fullmatch(self.form.name, n) for n in names if n
    ):
      raise MessageFault(
        f"calls of {names} cannot be written in this model's form, where a "
        "message has one call, and a name is one word without <|"
      )
    tagged, text = codec.split_thoughts(message.content)
    thought = re.sub(rf"\s*(?:{THINK}|{THINK_END})\s*", "\n", tagged).strip()
    body["content"] = text = text.lstrip("\n") if tagged else text
    if message.tool_calls:
      body["content"] = "\n\n".join(filter(None, (thought, text)))
    elif thought:
      body["thinking"] = thought
    return [body]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del tools
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    for part in self._END.split(self._NEXT + text):
      header, body_mark, body = part.partition(self._BODY)
      begins = header.startswith(self._NEXT)
      is_ours = begins and bool(body_mark)
      to = self._TO.search(header.removeprefix(self._NEXT))
      channel = self._CHANNEL.search(header)
      # A call may be cut before its arguments.
      if begins and to and (body_mark or to[1].startswith(self._NAMES)):
        name, arguments = to[1].removeprefix(self._NAMES), body.strip()
        raw = f"{name} {arguments}".strip()
        calls.append(_checked(name, arguments, raw, len(calls)))
      elif is_ours and channel and channel[1] == "analysis":
        thoughts.append(body.replace(THINK_END, ""))
      elif is_ours and channel:
        texts.append(body)
      elif malformed := part.removeprefix(self._NEXT):
        texts.append(malformed)
    if ended_by == self._CALL and not calls:
      calls = [ToolCall("", texts.pop() if texts else "", "0")]
    thought = "\n".join(thoughts)
    content = f"{THINK}{thought}{THINK_END}" if thought else ""
    return Message("assistant", content + "\n".join(texts), tuple(calls))


class Gemma4:
  """Gemma 4: `<|tool_call>call:look{at:<|"|>x<|"|>,of:[1,true]}<tool_call|>`.

  A tool's reply begins with the marker at which calls stop. Thoughts are on a
  channel, and between `<think>` tags in a `Message`.
  """

  _TAG, _END = "<|tool_call>", "<tool_call|>"
  _THOUGHT = re.compile(
    r"<\|channel>thought\n?(.*?)\n?(?:<channel\|>|\Z)", re.DOTALL
  )
  _CALL = re.compile(r"call:([^\s{}]+)(\{.*\})", re.DOTALL)
  # What JSON writes otherwise: texts, keys, and a word of older templates.
  _OTHERWISE = re.compile(
    r'<\|"\|>(.*?)<\|"\|>|([^:{}\[\],"]+):|None|"', re.DOTALL
  )
  form = CallForm(
    head="call:",
    middle="",
    tail=_END,
    tag=_TAG,
    name=r"[^\s{}]+",
    stop="<|tool_response>",
    names_replies=True,
    no_grammar="calls of Gemma 4 have arguments in a form of its own, which no "
    "grammar here can hold: set --config.sampling.calls=free",
  )

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    body = _with_objects(message)
    for call in body.get("tool_calls", ()):
      arguments = call["function"]["arguments"]
      if not isinstance(arguments, dict):
        raise MessageFault(
          f"the arguments {arguments!r:.200} of a call cannot be written in "
          "this model's form, where they are an object"
        )
    thought, text = codec.split_thoughts(message.content)
    if message.role == "assistant" and thought:
      body["content"] = text.lstrip("\n")
      body["reasoning"] = re.sub(f"{THINK}|{THINK_END}", "", thought).strip()
    return [body]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del ended_by, tools
    before, end, _ = text.partition("<channel|>")
    if end and "<|channel>" not in before:  # the generation prompt began it
      text = f"<|channel>thought\n{text}"
    thoughts = self._THOUGHT.findall(text)
    said, *parts = self._THOUGHT.sub("", text).split(self._TAG)
    calls: list[ToolCall] = []
    for part in parts:
      call, _, after = part.partition(self._END)
      name, written = _matched(self._CALL, call)
      arguments = self._OTHERWISE.sub(_as_json, written)
      calls.append(_checked(name, arguments, call.strip(), len(calls)))
      said += after
    content = "".join(f"{THINK}{thought}{THINK_END}" for thought in thoughts)
    return Message("assistant", content + said, tuple(calls))


def _as_json(match: re.Match[str]) -> str:
  """Writes what Gemma 4 writes otherwise, see there, as JSON does."""
  if match[0] == '"':
    return "a text between quotes of JSON"  # which is no JSON
  if match[0] == "None":
    return "null"
  if match[2] is None:
    return json.dumps(match[1], ensure_ascii=False)
  return f"{json.dumps(match[2], ensure_ascii=False)}: "


@dataclasses.dataclass(frozen=True)
class DeepSeek:
  """DeepSeek's: calls between markers that stand once, before and after all.

  V3-0324 and R1-0528 write `function`, a marker, a name, and its JSON in a
  fence; V3.1 writes a name, the marker, and JSON.
  """

  form: CallForm
  call: str  # regex of a call between its markers; groups: name, arguments
  as_text: bool  # templates join arguments to text, or write them as JSON

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    names = [call.name for call in message.tool_calls if call.name]
    if not all(re.fullmatch(self.form.name, name) for name in names):
      raise MessageFault(
        f"calls of {names} cannot be written in this model's form, where a "
        "name is one word without < and >"
      )
    return [
      message_to_json(message) if self.as_text else _with_objects(message)
    ]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del ended_by, tools
    said, *sections = text.split(self.form.tag)
    calls: list[ToolCall] = []
    for section in sections:
      inside, _, after = section.partition(self.form.section_end)
      first, *parts = inside.split(_BEGIN)
      if first.strip() or not parts:
        parts = [first, *parts]
      for part in parts:
        call, _, more = part.partition(_END)
        name, arguments = _matched(re.compile(self.call, re.DOTALL), call)
        calls.append(_checked(name, arguments, call.strip(), len(calls)))
        said += more.strip()
      said += after
    return Message("assistant", said, tuple(calls))


_BEGIN, _SEP, _END = (
  f"<｜tool▁{what}｜>" for what in ("call▁begin", "sep", "call▁end")
)
_V31 = CallForm(
  tag="<｜tool▁calls▁begin｜>",
  head=_BEGIN,
  middle=_SEP,
  tail=_END,
  section_end="<｜tool▁calls▁end｜>",
  name=r"[^\s<>]+",
  markers=(
    "<｜tool▁calls▁begin｜>",
    _BEGIN,
    _SEP,
    _END,
    "<｜tool▁calls▁end｜>",
  ),
)
_V3 = dataclasses.replace(
  _V31,
  head=f"{_BEGIN}function{_SEP}",
  middle="\n```json\n",
  tail=f"\n```{_END}",
  joint="\n",
  names_replies=True,  # the first of them is shown otherwise
)
DEEPSEEK = tuple(
  DeepSeek(form, call, as_text)
  for form, call in (
    (_V31, rf"\s*({_V31.name})\s*{_SEP}(.*)"),
    (_V3, rf"\s*\w*{_SEP}({_V3.name})\s*```json\n(.*)\n```\s*"),
  )
  for as_text in (True, False)
)


class Plain:
  """Texts alone, of a template that shows no tools or calls of unknown form."""

  def __init__(self, reason: str):
    self._reason = reason
    self.form = CallForm(head="", middle="", tail="", none_because=reason)

  def prepare(self, message: Message) -> list[dict[str, Any]]:
    if message.tool_calls or message.role == "tool":
      raise ConfigError(f"no calls or tools' replies here: {self._reason}")
    return [message_to_json(message)]

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    del ended_by, tools
    return Message("assistant", text)


def dialects_of(source: str) -> tuple[Dialect, ...]:
  """Returns the dialects that a chat template may have, by its source."""
  hints: dict[Dialect, bool] = {
    Glm4(): "observation" in source and "metadata" in source,
    GLM_45: "<arg_key>" in source,
    QWEN_CODER: "<function=" in source,
    Harmony(): "<|channel|>" in source and "functions." in source,
    Gemma4(): "<|tool_call>call:" in source,
  }
  found = [d for d, fits in hints.items() if fits]
  return (*found, *(DEEPSEEK if _SEP in source else ()), Llama(), Hermes())


def _matched(pattern: re.Pattern[str], call: str) -> tuple[str, str]:
  """Returns the name and the arguments of a call; empty if it is none."""
  match = pattern.fullmatch(call)
  return (match[1], match[2]) if match else ("", "")


def _checked(name: str, arguments: str, raw: str, number: int) -> ToolCall:
  """Returns a call, or one without a name where its arguments are no JSON."""
  try:
    codec.require_json(arguments)
  except (ValueError, RecursionError):
    return ToolCall("", raw, str(number))
  return ToolCall(name, arguments, str(number))


def _with_objects(message: Message) -> dict[str, Any]:
  """Returns OpenAI's form with arguments as objects, as templates expect."""
  body = message_to_json(message)
  for call in body.get("tool_calls", ()):
    function = call["function"]
    try:
      function["arguments"] = json.loads(function["arguments"])
    except (ValueError, RecursionError):
      continue  # not JSON: stays text
  return body
