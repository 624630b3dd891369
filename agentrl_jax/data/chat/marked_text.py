"""Shields text, so that only the template's own markers become marker tokens.

A web page in an observation may contain the text `<|im_end|>`. Tokenised as a
marker it would end the turn, and the page's author could speak as the user. So
the text of people, tools and experts is shielded: a note is inserted into every
marker's text. The note passes through the template's source, and
`MarkedTokenizer` removes it and encodes such text as ordinary tokens. Decoding
is the inverse: markers that the policy spelt in ordinary tokens are shielded,
its marker tokens are not.

Tokenizers of SentencePiece put a space before a text: before each section
between two added tokens, or before the first one alone. A piece of a
conversation is encoded as it stands in the whole, so `after` names the token
before it, and decoding takes away the spaces that encoding has put there.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.errors import ConfigError

# A note begins with a Unicode noncharacter; where the text contains that code
# point, it becomes a note itself, so that shielding can be undone.
_NOTE = "\ufdd0"
_SHIELD, _LITERAL = _NOTE + "0", _NOTE + "1"
_TAG = re.compile(r"</?[^\s<>]+>")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LONG = 4096  # characters, about a millisecond of tokenising
_SHORT = 32  # characters, of pieces of templates: role names, line ends
_NUM_SHORT = 4096  # of them that are remembered
_NOTES = {_SHIELD: "", _LITERAL: _NOTE}
IN_TEXT = -1  # stands for any token but a marker, as the one before a text
# Parts of a tokenizer.json that put a space before a text, or take one away,
# and the key by which they do not.
_BARE = {
  "Prepend": ("prepend", ""),
  "Metaspace": ("prepend_scheme", "never"),
  "ByteLevel": ("add_prefix_space", False),
  "Strip": ("start", 0),
}


class Markers:
  """Texts that are one token each, with a meaning of their own."""

  def __init__(self, texts: Iterable[str]):
    self.texts = tuple(sorted(texts, key=len, reverse=True))
    any_of = "|".join(map(re.escape, self.texts)) or r"(?!)"
    self._split = re.compile(f"({any_of})")
    # Of JSON, in whose strings a quote has a backslash before it.
    escaped = {json.dumps(t, ensure_ascii=False)[1:-1] for t in self.texts}
    begins = "|".join([any_of, *map(re.escape, sorted(escaped))])
    self._begins = re.compile(f"(?={begins})(.)", re.DOTALL)

  def shield(self, text: str, *, but: Sequence[str] = ()) -> str:
    """Inserts a note into every marker in `text`, except those in `but`."""
    text = text.replace(_NOTE, _LITERAL)
    if not but:
      return self._begins.sub(r"\1" + _SHIELD, text)
    pieces = re.split(f"({'|'.join(map(re.escape, but))})", text)
    return "".join(
      p if n % 2 else self._begins.sub(r"\1" + _SHIELD, p)
      for n, p in enumerate(pieces)
    )

  def shield_json(self, value: Any) -> Any:
    """Shields every string in a JSON value."""
    if isinstance(value, str):
      return self.shield(value)
    if isinstance(value, dict):
      return {self.shield(key): self.shield_json(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
      return [self.shield_json(v) for v in value]
    return value

  def split(self, text: str) -> list[str]:
    """Splits into plain text and markers in turn, plain text first and last."""
    return self._split.split(text)


def unshield(text: str) -> str:
  """Undoes `Markers.shield`."""
  return re.sub(f"{_NOTE}[01]", lambda note: _NOTES[note[0]], text)


def without_escapes(arguments: str) -> str:
  """Removes JSON escapes, which could hide a marker: `<\\/tool_call>`."""
  if "\\" not in arguments:
    return arguments
  try:
    json.loads(arguments)
  except (ValueError, RecursionError):
    return arguments  # no parser can read it, so none removes its escapes
  return _STRING.sub(
    lambda string: json.dumps(json.loads(string[0]), ensure_ascii=False),
    arguments,
  )


class MarkedTokenizer:
  """Tokenizer that encodes markers of templates only as marker tokens."""

  def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]):
    all_ids = {text: tokenizer.token_to_id(text) for text in markers}
    ids = {text: id for text, id in all_ids.items() if id is not None}
    if missing := [text for text in all_ids if text not in ids]:
      raise ConfigError(
        f"the tokenizer lacks {missing}, which the chat template needs; take "
        "the tokenizer and the template of one model"
      )
    self.id_of = ids
    self.markers = Markers(ids)
    self._tokenizer = tokenizer
    self._prefixing, self._bare = _copies(tokenizer, ids)
    # Of tokens that stand for one byte. The library takes a whole run of them
    # for broken if one character is: text that was streamed would change.
    self._byte_of = {
      tokenizer.token_to_id(f"<0x{byte:02X}>"): byte
      for byte in range(256 if "ByteFallback" in repr(tokenizer.decoder) else 0)
    }
    # Whether a space comes before each section, or before the first alone.
    self.prefixes_each = self._prefixing is not self._bare and any(
      tokenizer.encode(f"{text}a", add_special_tokens=False).ids[1:]
      == self._prefixing.encode("a").ids
      for text in itertools.islice(ids, 1)
    )
    cuts = (
      self._prefixing.get_added_tokens_decoder() if self.prefixes_each else {}
    )
    self._id_at = {token.content: id for id, token in cuts.items()} | ids
    self._cuts = Markers(self._id_at)
    self._text_at = {
      id: text if text in ids else self.markers.shield(text)
      for text, id in self._id_at.items()
    }
    # A call of the tokenizer takes longer than the short pieces themselves.
    self._spelt_short = functools.lru_cache(_NUM_SHORT)(self._spell)
    self._require_pieces(tokenizer)

  @functools.cached_property
  def vocab_size(self) -> int:
    """Number of token ids up to the highest; some below it may be unused."""
    return 1 + max(self._tokenizer.get_vocab().values())

  @functools.cached_property
  def longest_token(self) -> int:
    """Bytes of the longest vocabulary entry."""
    return max(len(text.encode()) for text in self._tokenizer.get_vocab())

  def encode(self, text: str, after: int | None = None) -> np.ndarray:
    """Encodes to int32: markers as markers, shielded ones as plain text.

    `after` is the token before the text; None: the text is the beginning.
    """
    ids: list[int] = []
    for n, piece in enumerate(self._cuts.split(text)):
      if n % 2:
        after = self._id_at[piece]
        ids.append(after)
      elif piece:
        ids += self._spelt(unshield(piece), self._has_prefix(after))
    return np.asarray(ids, np.int32)

  def encode_alone(self, text: str) -> np.ndarray:
    """Encodes a text with what the tokenizer puts around it: a first token."""
    whole = self._tokenizer.encode("a")
    put = whole.special_tokens_mask
    own = [n for n, is_put in enumerate(put) if not is_put] or [len(put)]
    before, after = whole.ids[: own[0]], whole.ids[own[-1] + 1 :]
    return np.asarray([*before, *self.encode(text), *after], np.int32)

  def grammars(self, stop_tokens: Sequence[int], vocab_size: int) -> Grammars:
    """Returns a compiler of grammars, in which markers are not text."""
    return Grammars(
      self._tokenizer,
      markers=self.id_of.values(),
      stop_tokens=stop_tokens,
      vocab_size=vocab_size,
    )

  def decode(
    self, ids: Sequence[int] | np.ndarray, after: int | None = None
  ) -> str:
    """Decodes ids; markers and spelt-out markers look alike."""
    return unshield(self.decode_shielded(ids, after))

  def decode_shielded(
    self, ids: Sequence[int] | np.ndarray, after: int | None = None
  ) -> str:
    """Decodes ids, with a note in every marker that was spelt out."""
    pieces: list[str] = []
    run: list[int] = []
    for id in map(int, ids):
      if id in self._text_at:
        pieces += [self._shielded(run, after), self._text_at[id]]
        run, after = [], id
      else:
        run.append(id)
    return "".join([*pieces, self._shielded(run, after)])

  def _has_prefix(self, after: int | None) -> bool:
    """Says if the tokenizer puts a space before a text that follows `after`."""
    if self._prefixing is self._bare:
      return False
    return after is None or (self.prefixes_each and after in self._text_at)

  def _spelt(self, text: str, has_prefix: bool) -> tuple[int, ...]:
    if len(text) <= _SHORT:
      return self._spelt_short(text, has_prefix)
    return self._spell(text, has_prefix)

  def _spell(self, text: str, has_prefix: bool) -> tuple[int, ...]:
    tokenizer = self._prefixing if has_prefix else self._bare
    if len(text) < _LONG:
      return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    # As a batch, which releases the interpreter's lock.
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return tuple(encoding.ids)

  def _shielded(self, run: list[int], after: int | None) -> str:
    text = "".join(
      bytes(map(self._byte_of.__getitem__, ids)).decode(errors="replace")
      if are_bytes
      else self._bare.decode(list(ids), skip_special_tokens=False)
      for are_bytes, ids in itertools.groupby(run, self._byte_of.__contains__)
    )
    if self._has_prefix(after):
      text = text.removeprefix(" ")
    return self.markers.shield(text)

  def _require_pieces(self, tokenizer: Tokenizer) -> None:
    """Raises `ConfigError` unless pieces join to what the whole reads like."""

    def differs(text: str, *more: str) -> bool:
      pieces = [self.encode(text), *(self.encode(m, IN_TEXT) for m in more)]
      whole = tokenizer.encode("".join([text, *more]), add_special_tokens=False)
      return [id for piece in pieces for id in piece] != whole.ids

    around = {text: f"a {text} b\na{text}" for text in self._id_at}
    if differs("".join(around.values())):
      loose = [text for text in around if differs(around[text])]
      raise ConfigError(
        f"the tokenizer's markers {loose} swallow the text beside them, need a "
        "word's end there, or are found in normalized text alone (lstrip, "
        "rstrip, single_word, normalized); pieces of a conversation would not "
        "join to what the whole reads like. Use a model of the families that "
        "docs/models.md lists"
      )
    if differs("a\n", "b a"):
      raise ConfigError(
        "the tokenizer reads a text otherwise than its two halves, beyond a "
        "space before it, so that an answer would not join to its prompt. Use "
        "a model of the families that docs/models.md lists"
      )


def markers_of(tokenizer: Tokenizer) -> tuple[str, ...]:
  """Returns a Hugging Face tokenizer's special tokens and tags.

  Families differ in which of `<think>`, `<tool_call>` and the like are special;
  text of a page must not become one of these tokens in either case.
  """
  added: Iterable[AddedToken] = tokenizer.get_added_tokens_decoder().values()
  return tuple(
    t.content for t in added if t.special or _TAG.fullmatch(t.content)
  )


def _copies(
  tokenizer: Tokenizer, markers: Mapping[str, int]
) -> tuple[Tokenizer, Tokenizer]:
  """Returns two copies of the tokenizer, to which markers are ordinary text.

  The second puts no space before a text. If the first does not either, they are
  one. Neither takes one away in decoding.
  """
  body = json.loads(tokenizer.to_str())
  body["added_tokens"] = [
    token for token in body["added_tokens"] if token["content"] not in markers
  ]
  body["post_processor"] = None
  bare = {
    key: json.loads(json.dumps(body[key]), object_hook=_without_prefix)
    for key in ("normalizer", "pre_tokenizer", "decoder")
  }
  prefixing = Tokenizer.from_str(
    json.dumps({**body, "decoder": bare["decoder"]})
  )
  if all(bare[key] == body[key] for key in ("normalizer", "pre_tokenizer")):
    return prefixing, prefixing
  return prefixing, Tokenizer.from_str(json.dumps(body | bare))


def _without_prefix(part: dict[str, Any]) -> dict[str, Any]:
  key, value = _BARE.get(str(part.get("type")), ("", None))
  return part | {key: value} if key in part else part
