"""Shields text, so that only the template's own markers become marker tokens.

A web page in an observation may contain the text `<|im_end|>`. Tokenised as a
marker it would end the turn, and the page's author could speak as the user. So
the text of people, tools and experts is shielded: a note is inserted into every
marker's text. The note passes through the template's source, and
`MarkedTokenizer` removes it and encodes such text as ordinary tokens. Decoding
is the inverse: markers that the policy spelt in ordinary tokens are shielded,
its marker tokens are not.
"""

import functools
import json
import re
from collections.abc import Iterable, Sequence
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
_LONG = 4096  # characters, about a millisecond of tokenising
_SHORT = 32  # characters, of pieces of templates: role names, line ends
_NUM_SHORT = 4096  # of them that are remembered
_NOTES = {_SHIELD: "", _LITERAL: _NOTE}


class Markers:
  """Texts that are one token each, with a meaning of their own."""

  def __init__(self, texts: Iterable[str]):
    self.texts = tuple(sorted(texts, key=len, reverse=True))
    any_of = "|".join(map(re.escape, self.texts)) or r"(?!)"
    self._split = re.compile(f"({any_of})")
    self._begins = re.compile(f"(?={any_of})(.)", re.DOTALL)

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
    self._text_of = {id: text for text, id in ids.items()}
    self._tokenizer = tokenizer
    self._plain = _without(tokenizer, set(ids))
    # A call of the tokenizer takes longer than the short pieces themselves.
    self._spelt_short = functools.lru_cache(_NUM_SHORT)(self._spell)

  @functools.cached_property
  def vocab_size(self) -> int:
    """Number of token ids up to the highest; some below it may be unused."""
    return 1 + max(self._tokenizer.get_vocab().values())

  @functools.cached_property
  def longest_token(self) -> int:
    """Bytes of the longest vocabulary entry."""
    return max(len(text.encode()) for text in self._tokenizer.get_vocab())

  def encode(self, text: str) -> np.ndarray:
    """Encodes to int32: markers as markers, shielded ones as plain text."""
    ids: list[int] = []
    for n, piece in enumerate(self.markers.split(text)):
      if n % 2:
        ids.append(self.id_of[piece])
      elif piece:
        ids += self._spelt(unshield(piece))
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

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Decodes ids; markers and spelt-out markers look alike."""
    return unshield(self.decode_shielded(ids))

  def decode_shielded(self, ids: Sequence[int] | np.ndarray) -> str:
    """Decodes ids, with a note in every marker that was spelt out."""
    pieces: list[str] = []
    run: list[int] = []
    for id in map(int, ids):
      if id in self._text_of:
        pieces += [self._shielded(run), self._text_of[id]]
        run = []
      else:
        run.append(id)
    return "".join([*pieces, self._shielded(run)])

  def _spelt(self, text: str) -> tuple[int, ...]:
    if len(text) <= _SHORT:
      return self._spelt_short(text)
    return self._spell(text)

  def _spell(self, text: str) -> tuple[int, ...]:
    if len(text) < _LONG:
      return tuple(self._plain.encode(text, add_special_tokens=False).ids)
    # As a batch, which releases the interpreter's lock.
    (encoding,) = self._plain.encode_batch([text], add_special_tokens=False)
    return tuple(encoding.ids)

  def _shielded(self, run: list[int]) -> str:
    return self.markers.shield(
      self._tokenizer.decode(run, skip_special_tokens=False)
    )


def markers_of(tokenizer: Tokenizer) -> tuple[str, ...]:
  """Returns a Hugging Face tokenizer's special tokens and tags.

  Families differ in which of `<think>`, `<tool_call>` and the like are special;
  text of a page must not become one of these tokens in either case.
  """
  added: Iterable[AddedToken] = tokenizer.get_added_tokens_decoder().values()
  markers = tuple(t for t in added if t.special or _TAG.fullmatch(t.content))
  loose = [t.content for t in markers if t.lstrip or t.rstrip or t.single_word]
  if loose:
    raise ConfigError(
      f"the tokenizer's markers {loose} swallow the text beside them, or need "
      "a word's end there (lstrip, rstrip, single_word); pieces of a "
      "conversation would not join to what the whole reads like. Use a model "
      "of the families that docs/models.md lists"
    )
  return tuple(t.content for t in markers)


def _without(tokenizer: Tokenizer, markers: set[str]) -> Tokenizer:
  """Returns a copy of the tokenizer that treats markers as ordinary text."""
  body = json.loads(tokenizer.to_str())
  body["added_tokens"] = [
    token for token in body["added_tokens"] if token["content"] not in markers
  ]
  body["post_processor"] = None
  return Tokenizer.from_str(json.dumps(body))
