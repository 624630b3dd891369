"""Text in which a marker counts only where the template put it.

A web page that an environment shows may spell `<|im_end|>`. Tokenised as it
stands it would end the turn, and whoever wrote the page would speak as the
user. So what people, tools and experts say is shielded: a note is put inside
every marker that it spells. The note travels through the template's own source,
and `MarkedTokenizer` takes it out and spells such a marker in ordinary tokens.
Back again likewise: what a policy spells out is shielded, what it marks is not.
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

# A code point that Unicode keeps for no text at all begins a note; one that
# stands in the text all the same becomes a note itself, so nothing is lost.
_NOTE = "\ufdd0"
_SHIELD, _LITERAL = _NOTE + "0", _NOTE + "1"
_TAG = re.compile(r"</?[^\s<>]+>")
_LONG = 4096  # characters that are tokenised in a millisecond
_NOTES = {_SHIELD: "", _LITERAL: _NOTE}


class Markers:
  """The texts that are one token with a meaning of its own."""

  def __init__(self, texts: Iterable[str]):
    self.texts = tuple(sorted(texts, key=len, reverse=True))
    any_of = "|".join(map(re.escape, self.texts)) or r"(?!)"
    self._split = re.compile(f"({any_of})")
    self._begins = re.compile(f"(?={any_of})(.)", re.DOTALL)

  def shield(self, text: str, *, but: Sequence[str] = ()) -> str:
    """`text` with a note in every marker that it spells, `but` some."""
    text = text.replace(_NOTE, _LITERAL)
    if not but:
      return self._begins.sub(r"\1" + _SHIELD, text)
    pieces = re.split(f"({'|'.join(map(re.escape, but))})", text)
    return "".join(
      p if n % 2 else self._begins.sub(r"\1" + _SHIELD, p)
      for n, p in enumerate(pieces)
    )

  def shield_json(self, value: Any) -> Any:
    """The same for every string in what JSON can hold."""
    if isinstance(value, str):
      return self.shield(value)
    if isinstance(value, dict):
      return {self.shield(key): self.shield_json(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
      return [self.shield_json(v) for v in value]
    return value

  def split(self, text: str) -> list[str]:
    """Plain text and markers in turn, plain text first and last."""
    return self._split.split(text)


def unshield(text: str) -> str:
  """What `shield` was given."""
  return re.sub(f"{_NOTE}[01]", lambda note: _NOTES[note[0]], text)


class MarkedTokenizer:
  """A tokenizer that reads markers in templates and nowhere else."""

  def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]):
    found = {text: tokenizer.token_to_id(text) for text in markers}
    ids = {text: id for text, id in found.items() if id is not None}
    if missing := [text for text in found if text not in ids]:
      raise ConfigError(
        f"the tokenizer lacks {missing}, which the chat template needs; take "
        "the tokenizer and the template of one model"
      )
    self.id_of = ids
    self.markers = Markers(ids)
    self._text_of = {id: text for text, id in ids.items()}
    self._tokenizer = tokenizer
    self._plain = _without(tokenizer, set(ids))

  @property
  def vocab_size(self) -> int:
    """How many token ids there are."""
    return self._tokenizer.get_vocab_size()

  @functools.cached_property
  def longest_token(self) -> int:
    """Bytes of text that one token can stand for."""
    return max(len(text.encode()) for text in self._tokenizer.get_vocab())

  def encode(self, text: str) -> np.ndarray:
    """Ids, int32: markers as markers, shielded ones spelt out."""
    ids: list[int] = []
    for n, piece in enumerate(self.markers.split(text)):
      if n % 2:
        ids.append(self.id_of[piece])
      elif piece:
        ids += self._spelt(unshield(piece))
    return np.asarray(ids, np.int32)

  def grammars(self, stop_tokens: Sequence[int], vocab_size: int) -> Grammars:
    """Reads grammars over this tokenizer, to which markers are no text."""
    return Grammars(
      self._tokenizer,
      markers=self.id_of.values(),
      stop_tokens=stop_tokens,
      vocab_size=vocab_size,
    )

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, in which marked and spelt look alike."""
    return unshield(self.decode_shielded(ids))

  def decode_shielded(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, with a note in every marker that was spelt out."""
    pieces: list[str] = []
    run: list[int] = []
    for id in map(int, ids):
      if id in self._text_of:
        pieces += [self._shielded(run), self._text_of[id]]
        run = []
      else:
        run.append(id)
    return "".join([*pieces, self._shielded(run)])

  def _spelt(self, text: str) -> list[int]:
    if len(text) < _LONG:
      return list(self._plain.encode(text, add_special_tokens=False).ids)
    # As a batch, which lets other threads run meanwhile.
    (found,) = self._plain.encode_batch([text], add_special_tokens=False)
    return list(found.ids)

  def _shielded(self, run: list[int]) -> str:
    return self.markers.shield(
      self._tokenizer.decode(run, skip_special_tokens=False)
    )


def markers_of(tokenizer: Tokenizer) -> tuple[str, ...]:
  """What a Hugging Face tokenizer marks: special tokens, and tags.

  Families differ in which of `<think>`, `<tool_call>` and the like they call
  special; a page that spells them has no business being one token either way.
  """
  added: Iterable[AddedToken] = tokenizer.get_added_tokens_decoder().values()
  found = tuple(t for t in added if t.special or _TAG.fullmatch(t.content))
  loose = [t.content for t in found if t.lstrip or t.rstrip or t.single_word]
  if loose:
    raise ConfigError(
      f"the tokenizer's markers {loose} swallow the text beside them, or need "
      "a word's end there (lstrip, rstrip, single_word); pieces of a "
      "conversation would not join to what the whole reads like. Use a model "
      "of the families that docs/models.md lists"
    )
  return tuple(t.content for t in found)


def _without(tokenizer: Tokenizer, markers: set[str]) -> Tokenizer:
  """The same tokenizer, which takes markers for ordinary text."""
  body = json.loads(tokenizer.to_str())
  body["added_tokens"] = [
    token for token in body["added_tokens"] if token["content"] not in markers
  ]
  body["post_processor"] = None
  return Tokenizer.from_str(json.dumps(body))
