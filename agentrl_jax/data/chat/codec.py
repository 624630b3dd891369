"""Converts messages to token ids and back, by a chat template and a tokenizer.

Each piece of text is tokenised once, when it enters the conversation; sampled
answers are never tokenised. The text of messages cannot contain markers: a
marker's letters in it are encoded as ordinary tokens.

`CompactTemplate` is the template of models that are trained from scratch here.
A conversation grows by appending: its functions render the new messages only,
and the pieces joined equal the full rendering of `templates/compact.jinja` (a
test compares them). Tool calls have the Hermes form,
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Roles are single
marker tokens. Tool schemas are signatures with descriptions, complete, which
take a third of the tokens of their JSON.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.data.chat.call_grammar import (
  THINK,
  THINK_END,
  CallForm,
  CallGrammar,
)
from agentrl_jax.data.chat.marked_text import (
  IN_TEXT,
  MarkedTokenizer,
  unshield,
  without_escapes,
)
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.records import (
  MAX_STOPS,
  Message,
  Tool,
  ToolCall,
  unique_members,
)
from agentrl_jax.errors import (
  ConfigError,
  MessageFault,
  PromptTooLong,
  refuse_constant,
)

END = "<|end|>"  # ends every message; the policy's stop token
CALL, CALL_END = "<tool_call>", "</tool_call>"
MARKERS = tuple(
  f"<|{role}|>" for role in ("system", "user", "assistant", "tool")
)
SPECIAL_TOKENS = (END, *MARKERS, CALL, CALL_END)
GENERATION_PROMPT = "<|assistant|>"

_NOTHING = Message("assistant")
# Markers that the text of an answer may contain.
_THOUGHT = (THINK, THINK_END)
_CACHE_SIZE = 256  # grammars of calls
# Starts of conversations that are remembered, and their longest text: what a
# client sends may have megabytes.
_NUM_STARTS, _LONGEST_START = 64, 1 << 16
# Keywords of a tool's schema that its signature shows, or that say nothing.
_IN_SIGNATURE = frozenset(
  {"$schema", "title", "type", "properties", "required"}
)
_OPENING = re.compile(f"{re.escape(CALL)}|{re.escape(THINK)}")
_THOUGHT_OPENING = re.compile(rf"\s*{re.escape(THINK)}")
_CLOSING = re.compile(rf"\s*(?:{re.escape(CALL_END)}|\Z)")
_SPACE, _COLON, _COMMA = (
  re.compile(rf"[ \t\n\r]*{mark}[ \t\n\r]*") for mark in ("", ":", ",?")
)
# Strict, so that what is read here is read alike by every program.
_JSON = json.JSONDecoder(
  parse_constant=refuse_constant, object_pairs_hook=unique_members
)
_ARGUMENTS = ("arguments", "parameters")
# Keys of a call without arguments; another one may hold them under its name.
_BARE = frozenset({"name", "type", "id"})


class CompactTemplate:
  """Renders and parses the compact format."""

  markers = SPECIAL_TOKENS
  stops = (END,)
  cue = GENERATION_PROMPT
  form = CallForm(
    tag=CALL,
    head='\n{"name": "',
    middle='", "arguments": ',
    tail=f"}}\n{CALL_END}",
  )

  def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Renders the first messages, with the tools, and the generation prompt."""
    if not messages:
      raise ValueError("a conversation starts with at least one message")
    first, *rest = messages
    listed = "".join(f"\n{render_tool(tool)}" for tool in tools)
    head = f"<|{first.role}|>{first.content}{listed}{END}"
    return head + render_messages(rest) + GENERATION_PROMPT

  def extend(
    self,
    messages: Sequence[Message],
    *,
    ended_by: str | None,
    calls: Sequence[ToolCall] = (),
  ) -> str:
    """Renders new messages after an answer, and the generation prompt.

    An answer that was cut off has no stop token, and one is added.
    """
    del calls
    end = END if ended_by is None else ""
    return end + render_messages(messages) + GENERATION_PROMPT

  def write(self, message: Message) -> str:
    """Renders an assistant's message as the policy writes it, end included."""
    return message.content + _render_calls(message) + END

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    """Parses the assistant's message.

    A call that cannot be read becomes a call without a name whose arguments
    are the raw text: the environment then reports the mistake.
    """
    del ended_by, tools
    return read_tagged_calls(text.removesuffix(END))


def render_messages(messages: Sequence[Message]) -> str:
  """Renders complete messages."""
  return "".join(
    f"<|{m.role}|>{m.content}{_render_calls(m)}{END}" for m in messages
  )


def _render_calls(message: Message) -> str:
  return "".join(
    f'{CALL}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
    f'"arguments": {call.arguments}}}\n{CALL_END}'
    for call in message.tool_calls
  )


def render_tool(tool: Tool) -> str:
  """Renders a tool: signature, description, and a line per parameter.

  Other keywords of its schema, such as `$defs` and `anyOf`, are lines too.
  """
  properties: Mapping[str, Any] = tool.parameters.get("properties", {})
  required = tool.parameters.get("required", ())
  signature = ", ".join(
    f"{name}{'' if name in required else '?'}: {_render_type(schema)}"
    for name, schema in properties.items()
  )
  lines = [f"{tool.name}({signature}): {tool.description}"]
  lines += [
    f"- {name}: {schema['description']}"
    for name, schema in properties.items()
    if isinstance(schema, Mapping) and schema.get("description")
  ]
  lines += [
    f"- {keyword}: {json.dumps(value, ensure_ascii=False)}"
    for keyword, value in tool.parameters.items()
    if keyword not in _IN_SIGNATURE
    and not (keyword == "additionalProperties" and value is False)
  ]
  return "\n".join(lines)


def _render_type(schema: Any) -> str:
  """Renders `string`, `string[]`, or the JSON schema where neither is exact."""
  if schema == {}:
    return "any"
  given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
  if given.get("type") == "array" and given.get("items"):
    return _render_type(given["items"]) + "[]"
  plain = isinstance(given.get("type"), str)
  if plain and not given.get("enum") and not given.get("properties"):
    return str(given["type"])
  return json.dumps(schema, ensure_ascii=False)


CallReader = Callable[[str, int, str], tuple[ToolCall, int]]


def read_tagged_calls(text: str, reader: CallReader | None = None) -> Message:
  """Reads an answer whose calls stand between tags, and its text around them.

  A call in a thought is none: a thought is text up to its own end, and a call
  is JSON up to its own end, whatever tags stand in it. `reader` reads a call
  from behind its tag to behind its end tag, or raises ValueError; None: JSON.
  """
  texts: list[str] = []
  calls: list[ToolCall] = []
  at = 0
  while opening := _OPENING.search(text, at):
    texts.append(text[at : opening.start()])
    if opening[0] == THINK:
      end = _end_of_thought(text, opening.start())
      texts.append(text[opening.start() : end])
      at = end
    else:
      call, at = _tagged_call(
        text, opening.end(), str(len(calls)), reader or _tagged_json
      )
      calls.append(call)
  return Message("assistant", "".join([*texts, text[at:]]), tuple(calls))


def split_thoughts(text: str) -> tuple[str, str]:
  """Splits off the thoughts that a text begins with; the last may be open."""
  at = 0
  while opening := _THOUGHT_OPENING.match(text, at):
    at = _end_of_thought(text, opening.end())
  return text[:at], text[at:]


def _end_of_thought(text: str, at: int) -> int:
  end = text.find(THINK_END, at)
  return len(text) if end < 0 else end + len(THINK_END)


def _tagged_call(
  text: str, at: int, id: str, reader: CallReader
) -> tuple[ToolCall, int]:
  """Reads a call from after its tag; also returns where its end tag ends."""
  try:
    return reader(text, at, id)
  except (ValueError, RecursionError):
    pass  # no call: the letters up to the next end tag are kept
  end = text.find(CALL_END, at)
  if end < 0:
    return ToolCall("", text[at:].strip(), id), len(text)
  return ToolCall("", text[at:end].strip(), id), end + len(CALL_END)


def _tagged_json(text: str, at: int, id: str) -> tuple[ToolCall, int]:
  call, end = call_at(text, _skip(_SPACE, text, at), id)
  closing = _CLOSING.match(text, end)
  if closing is None:
    raise ValueError(f"no {CALL_END} follows")
  return call, closing.end()


def call_at(text: str, at: int, id: str) -> tuple[ToolCall, int]:
  """Reads a call, JSON with a name and arguments, and where it ends.

  The arguments are the letters that were written, or the content of a JSON
  string. JSON that is no call becomes a call without a name. Raises ValueError
  or RecursionError for other text.
  """
  parsed, end = _JSON.raw_decode(text, at)
  raw = ToolCall("", text[at:end], id)
  if not isinstance(parsed, dict) or not isinstance(parsed.get("name"), str):
    return raw, end
  keys = [key for key in _ARGUMENTS if key in parsed]
  if not keys and parsed.keys() <= _BARE:
    return ToolCall(parsed["name"], "{}", id), end
  if len(keys) != 1:
    return raw, end
  arguments = parsed[keys[0]]
  if not isinstance(arguments, str):
    arguments = _source_of(keys[0], text, at)
  return ToolCall(parsed["name"], arguments, id), end


def _source_of(key: str, text: str, at: int) -> str:
  """Returns the letters of a member of the JSON object that begins at `at`."""
  at = _skip(_SPACE, text, at + 1)
  while True:
    name, at = _JSON.raw_decode(text, at)
    start = _skip(_COLON, text, at)
    _, end = _JSON.raw_decode(text, start)
    if name == key:
      return text[start:end]
    at = _skip(_COMMA, text, end)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
  match = pattern.match(text, at)
  return match.end() if match else at


def require_json(text: str) -> None:
  """Raises ValueError or RecursionError for text that is no strict JSON."""
  _JSON.decode(text)


def json_at(text: str, at: int) -> tuple[Any, int]:
  """Reads strict JSON and where it ends. Raises as `require_json`."""
  return _JSON.raw_decode(text, at)


class ChatTemplate(Protocol):
  """Format of one family of models, as shielded text."""

  @property
  def markers(self) -> Sequence[str]:
    """Texts that are one token each, which data cannot contain."""

  @property
  def stops(self) -> Sequence[str]:
    """Markers that end an answer and belong to it."""

  @property
  def cue(self) -> str:
    """Text that ends with what stands before every answer."""

  @property
  def form(self) -> CallForm:
    """Form of an answer with tool calls."""

  def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Renders the first messages and the generation prompt."""

  def extend(
    self,
    messages: Sequence[Message],
    *,
    ended_by: str | None,
    calls: Sequence[ToolCall] = (),
  ) -> str:
    """Renders new messages after an answer; `ended_by` is its stop marker.

    `calls` are the answer's, whose names some templates show with replies.
    """

  def write(self, message: Message) -> str:
    """Renders an answer, its stop marker last."""

  def read(
    self, text: str, ended_by: str | None, tools: Sequence[Tool] = ()
  ) -> Message:
    """Parses an answer; `text` is without its stop marker.

    The schemas of `tools` say what values are, where the form does not.
    """


class ChatCodec:
  """Encodes conversations for a policy, and decodes its answers."""

  def __init__(
    self, tokenizer: Tokenizer, template: ChatTemplate | None = None
  ):
    self._template = template = template or CompactTemplate()
    added = tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    self._tokenizer = MarkedTokenizer(
      tokenizer, special.union(template.markers)
    )
    self.encode_alone = self._tokenizer.encode_alone
    ids = self._tokenizer.id_of
    self._stop_of = {ids[text]: text for text in template.stops}
    if len(self._stop_of) > MAX_STOPS:
      raise ConfigError(
        f"an answer may end with {len(self._stop_of)} tokens, "
        f"{', '.join(template.stops)}, and {MAX_STOPS} is the most: leave out "
        "of eos_token_id in generation_config.json and config.json those that "
        "the chat template does not use"
      )
    self.stop_tokens: tuple[int, ...] = tuple(self._stop_of)
    self._before_answer = int(self.encode(template.cue)[-1])
    self._grammar_of_calls = functools.lru_cache(_CACHE_SIZE)(
      self._write_grammar
    )
    self._start_of = functools.lru_cache(_NUM_STARTS)(self._encode_start)

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""
    return self._tokenizer.vocab_size

  @property
  def thinks(self) -> bool:
    """True if every answer begins within a thought, which the prompt opens."""
    return self._template.form.thinks

  @property
  def has_channels(self) -> bool:
    """True if an answer's text stands between markers, as in Harmony."""
    return bool(self._template.form.text_head)

  @property
  def thought_end(self) -> str:
    """Text of the tokens that end a thought."""
    return self._template.form.thought[1]

  @property
  def longest_token(self) -> int:
    """Bytes of the longest vocabulary entry."""
    return self._tokenizer.longest_token

  def require_room(self, num_bytes: int, room: int, *, times: int = 1) -> None:
    """Raises `PromptTooLong` for text that `room` tokens cannot hold.

    The longest entry of the vocabulary bounds the bytes of a token, so such
    text need not be tokenized. Where a template may leave text out, `times` as
    much is accepted.
    """
    most = times * max(room, 0) * self.longest_token
    if num_bytes > most:
      raise PromptTooLong(
        f"the prompt has {num_bytes} bytes; the {max(room, 0)} tokens that fit "
        f"have at most {most}: shorten the prompt"
      )

  def start(
    self,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    room: int | None = None,
  ) -> np.ndarray:
    """Returns the ids of the first messages and the generation prompt.

    They are read-only: attempts of a group begin alike, and share them. Raises
    `PromptTooLong`, here and in `extend`, where `room` tokens cannot hold the
    text; None takes any.
    """
    key = _tools_key(tools)
    length = len(key) + sum(len(each.content) for each in messages)
    # With calls it is a client's history, and no start of an episode.
    has_calls = any(each.tool_calls or each.tool_call_id for each in messages)
    is_kept = length <= _LONGEST_START and not has_calls
    encode = self._start_of if is_kept else self._encode_start
    return encode(tuple(messages), key, room)

  def extend(
    self,
    messages: Sequence[Message],
    *,
    ended_by: int | None,
    after: Message | None = None,
    room: int | None = None,
  ) -> np.ndarray:
    """Returns the ids to append after an answer.

    `ended_by` is the answer's stop token; None if it was cut off before one.
    `after` is the answer, which some templates name calls by.
    """
    stop = None if ended_by is None else self._stop_of[ended_by]
    answer, *shielded = map(self._shield, (after or _NOTHING, *messages))
    text = self._template.extend(
      shielded, ended_by=stop, calls=answer.tool_calls
    )
    return self.encode(
      text, room=room, after=IN_TEXT if ended_by is None else ended_by
    )

  def write(self, message: Message) -> np.ndarray:
    """Returns the ids of an assistant's message, its stop token last.

    Raises `MessageFault` for a message whose text would be read as a call,
    such as a web page's `<tool_call>` where the tokenizer has no such token.
    """
    said = self._write(dataclasses.replace(message, tool_calls=()))
    if message.content and self.read(said).tool_calls:
      raise MessageFault(
        "the text of an answer would be read as a call, since it has what "
        f"begins one in this model's form: {message.content!r:.300}. Leave it "
        "out of the text"
      )
    return self._write(message) if message.tool_calls else said

  def read(
    self, sampled: Sequence[int] | np.ndarray, tools: Sequence[Tool] = ()
  ) -> Message:
    """Decodes sampled ids to the assistant's message.

    The schemas of `tools` say what values are, where a call's form does not.
    """
    ids = list(map(int, sampled))
    ended_by = self._stop_of.get(ids[-1]) if ids else None
    said = ids[:-1] if ended_by else ids
    text = self._tokenizer.decode_shielded(said, self._before_answer)
    message = self._template.read(text, ended_by, tools)
    return _mapped(message, of_content=unshield, of_call=unshield)

  def call_grammar(self, tools: Sequence[Tool], **rules: Any) -> str:
    """See `CallGrammar.of_calls`; the last grammars are kept."""
    key = json.dumps([[tool.name, dict(tool.parameters)] for tool in tools])
    return self._grammar_of_calls(key, **rules)

  def json_grammar(self, schema: Mapping[str, Any]) -> str:
    """Returns the grammar of answers that are JSON of a schema.

    Raises `ConfigError` for a schema that no grammar can describe.
    """
    return self._call_grammar.of_json(schema)

  def grammars(self, vocab_size: int) -> Grammars:
    """Returns a compiler of grammars, for a policy of this vocabulary size."""
    return self._tokenizer.grammars(self.stop_tokens, vocab_size)

  def encode(
    self, text: str, *, room: int | None = None, after: int | None = None
  ) -> np.ndarray:
    """Returns the ids, int32, of shielded text; markers in it are markers.

    `after` is the token before it, or `IN_TEXT`; None: it is the beginning.
    """
    if room is not None:
      self.require_room(num_bytes_of(unshield(text)), room)
    return self._tokenizer.encode(text, after)

  def decode(
    self, ids: Sequence[int] | np.ndarray, *, after: int | None = None
  ) -> str:
    """Returns the text of ids, markers included; `after` is as in `encode`."""
    return self._tokenizer.decode(ids, after)

  def _write(self, message: Message) -> np.ndarray:
    text = self._template.write(self._shield(message))
    return self.encode(text, after=self._before_answer)

  def _encode_start(
    self, messages: tuple[Message, ...], key: str, room: int | None
  ) -> np.ndarray:
    shielded = [self._shield_tool(Tool(*fields)) for fields in json.loads(key)]
    text = self._template.start([self._shield(m) for m in messages], shielded)
    ids = self.encode(text, room=room)
    ids.flags.writeable = False
    return ids

  def _write_grammar(self, key: str, **rules: Any) -> str:
    tools = [Tool(name, "", schema) for name, schema in json.loads(key)]
    return self._call_grammar.of_calls(tools, **rules)

  @functools.cached_property
  def _call_grammar(self) -> CallGrammar:
    template = self._template
    return CallGrammar(template.form, self._tokenizer, template.stops)

  def _shield(self, message: Message) -> Message:
    shield = self._tokenizer.markers.shield
    thought = _THOUGHT if message.role == "assistant" else ()
    return _mapped(
      message,
      of_content=lambda text: shield(text, but=thought),
      of_call=lambda text: shield(without_escapes(text)),
    )

  def _shield_tool(self, tool: Tool) -> Tool:
    name, text, schema = self._tokenizer.markers.shield_json(
      [tool.name, tool.description, dict(tool.parameters)]
    )
    return Tool(name, text, schema)


def num_bytes_of(text: str) -> int:
  """Returns the bytes of a text in UTF-8; half a surrogate pair has three."""
  return len(text.encode("utf-8", "surrogatepass"))


def _tools_key(tools: Sequence[Tool]) -> str:
  """Returns text that `Tool` can be made of again, with its order of keys."""
  return json.dumps(
    [[tool.name, tool.description, dict(tool.parameters)] for tool in tools]
  )


def _mapped(
  message: Message,
  *,
  of_content: Callable[[str], str],
  of_call: Callable[[str], str],
) -> Message:
  """Maps the texts of a message and of its calls."""
  calls = tuple(
    ToolCall(of_call(c.name), of_call(c.arguments), c.id)
    for c in message.tool_calls
  )
  return dataclasses.replace(
    message, content=of_content(message.content), tool_calls=calls
  )
