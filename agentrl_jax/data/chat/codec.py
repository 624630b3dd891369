"""Messages to token ids and back: the template and the tokenizer together.

Tokenising happens once per piece of text, when it enters the conversation. What
the policy sampled is never tokenised at all. What messages say is text and no
more: a marker that stands in it is spelt out, letter for letter.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.data.chat.marked_text import MarkedTokenizer, unshield
from agentrl_jax.data.chat.template import CompactTemplate
from agentrl_jax.data.grammar.call_grammar import (
  THINK,
  THINK_END,
  CallForm,
  CallGrammar,
)
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.messages import Message, Tool, ToolCall

# What an answer's own text may mark: a policy thinks in it.
_THOUGHT = (THINK, THINK_END)
_KEPT = 256  # grammars of calls that are kept written


class ChatTemplate(Protocol):
  """How one family of models writes conversations, as shielded text."""

  @property
  def markers(self) -> Sequence[str]:
    """Texts that are one token each and that data cannot spell."""
    ...

  @property
  def stops(self) -> Sequence[str]:
    """Markers that end an answer and belong to it."""
    ...

  @property
  def form(self) -> CallForm:
    """What an answer that calls looks like."""
    ...

  def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """A conversation's opening, up to where the policy writes."""
    ...

  def extend(self, messages: Sequence[Message], *, ended_by: str | None) -> str:
    """What to append after an answer; None: it did not end by itself."""
    ...

  def write(self, message: Message) -> str:
    """An answer, its stop token last."""
    ...

  def read(self, text: str, ended_by: str | None) -> Message:
    """The answer that `text` is, its stop token left out."""
    ...


class ChatCodec:
  """Turns conversations into what a policy reads, and answers into messages."""

  def __init__(
    self, tokenizer: Tokenizer, template: ChatTemplate | None = None
  ):
    self._template = template = template or CompactTemplate()
    special = [
      token.content
      for token in tokenizer.get_added_tokens_decoder().values()
      if token.special
    ]
    self._tokenizer = MarkedTokenizer(tokenizer, {*template.markers, *special})
    ids = self._tokenizer.id_of
    self._stop_of = {ids[text]: text for text in template.stops}
    self.stop_tokens: tuple[int, ...] = tuple(self._stop_of)
    self._grammar_of_calls = functools.lru_cache(_KEPT)(self._written)

  @property
  def vocab_size(self) -> int:
    """How many token ids there are."""
    return self._tokenizer.vocab_size

  @property
  def longest_token(self) -> int:
    """Bytes of text that one token can stand for: of the longest entry."""
    return self._tokenizer.longest_token

  def start(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> np.ndarray:
    """Ids of a conversation's opening, up to where the policy writes."""
    shielded = [self._shield_tool(tool) for tool in tools]
    return self.encode(
      self._template.start([self._shield(m) for m in messages], shielded)
    )

  def extend(
    self, messages: Sequence[Message], *, ended_by: int | None
  ) -> np.ndarray:
    """Ids to append after an answer.

    `ended_by` is the stop token that the answer ended with, None if it ran out
    of budget before one.
    """
    stop = None if ended_by is None else self._stop_of[ended_by]
    shielded = [self._shield(m) for m in messages]
    return self.encode(self._template.extend(shielded, ended_by=stop))

  def write(self, message: Message) -> np.ndarray:
    """Ids of an assistant's message, its stop token last."""
    return self.encode(self._template.write(self._shield(message)))

  def read(self, sampled: Sequence[int] | np.ndarray) -> Message:
    """The assistant's message that sampled ids stand for."""
    ids = list(map(int, sampled))
    ended_by = self._stop_of.get(ids[-1]) if ids else None
    text = self._tokenizer.decode_shielded(ids[:-1] if ended_by else ids)
    message = self._template.read(text, ended_by)
    return _mapped(message, of_content=unshield, of_call=unshield)

  def call_grammar(
    self, tools: Sequence[Tool], *, choice: str = "auto", parallel: bool = True
  ) -> str:
    """The grammar of answers that call these tools, by their schemas.

    `choice` "auto" is text, calls, or text and then calls; "required" is calls
    alone. Before either the policy may think, if its template has thoughts.
    Without `parallel` there is one call at most. Raises `ConfigError` for tools
    whose calls no grammar can be made of, with the reason.
    """
    taken = json.dumps([[tool.name, dict(tool.parameters)] for tool in tools])
    return self._grammar_of_calls(taken, choice, parallel)

  def json_grammar(self, schema: Mapping[str, Any]) -> str:
    """The grammar of answers that are JSON of a schema, and nothing else.

    Raises `ConfigError` for a schema that no grammar can be made of.
    """
    return self._call_grammar.of_json(schema)

  def grammars(self, vocab_size: int) -> Grammars:
    """Reads grammars for a policy that knows so many tokens."""
    return self._tokenizer.grammars(self.stop_tokens, vocab_size)

  def encode(self, text: str) -> np.ndarray:
    """Ids of a piece of text, int32, in which markers count."""
    return self._tokenizer.encode(text)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, markers included."""
    return self._tokenizer.decode(ids)

  def _written(self, taken: str, choice: str, parallel: bool) -> str:
    tools = [Tool(name, "", schema) for name, schema in json.loads(taken)]
    return self._call_grammar.of_calls(tools, choice=choice, parallel=parallel)

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
      of_call=lambda text: shield(_without_escapes(text)),
    )

  def _shield_tool(self, tool: Tool) -> Tool:
    name, text, schema = self._tokenizer.markers.shield_json(
      [tool.name, tool.description, dict(tool.parameters)]
    )
    return Tool(name, text, schema)


def _without_escapes(arguments: str) -> str:
  """JSON that hides no marker, as `<\\/tool_call>` would."""
  if "\\" not in arguments:
    return arguments
  try:
    return json.dumps(json.loads(arguments), ensure_ascii=False)
  except (ValueError, RecursionError):
    return arguments  # which nobody can read, and so nobody unescapes


def _mapped(
  message: Message,
  *,
  of_content: Callable[[str], str],
  of_call: Callable[[str], str],
) -> Message:
  """The message with its content and its calls' text mapped."""
  calls = tuple(
    ToolCall(of_call(c.name), of_call(c.arguments), c.id)
    for c in message.tool_calls
  )
  return dataclasses.replace(
    message, content=of_content(message.content), tool_calls=calls
  )
