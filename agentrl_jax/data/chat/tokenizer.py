"""Trains a small byte-level BPE on the environments' own texts.

Each digit is a token, so that numbers are copied digit by digit. A word
includes the space before it. Every byte is in the vocabulary, so any text can
be encoded, and decoded unchanged.

Lines that most conversations share word for word, such as the description of a
tool, can be one token each (as in SuperBPE, arXiv:2503.13423): a conversation
then takes two thirds of the tokens.
"""

import collections
import os
import pathlib
import re
from collections.abc import Sequence

from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  pre_tokenizers,
  trainers,
)

from agentrl_jax.data.chat import codec
from agentrl_jax.errors import ConfigError
from agentrl_jax.hugging_face_files import read_text

PAD = "<|pad|>"  # id 0
_PIECES = r"\d| ?[^\W\d]+| ?[^\s\w]+|\n|\s"
_NUM_BYTES = 256
_MARKER = re.compile("|".join(map(re.escape, codec.SPECIAL_TOKENS)))
_LINE_WORDS = 4  # least length of a line that becomes a token
_PANIC = "PanicException"
_LINE_SHARE = 0.1  # of the texts, which must contain the line


def train_tokenizer(
  texts: Sequence[str],
  *,
  vocab_size: int,
  whole_tokens: Sequence[str] = (),
  whole_lines: int = 0,
) -> Tokenizer:
  """Learns a vocabulary of `vocab_size` tokens from `texts`.

  `whole_tokens` become one token each, and so do up to `whole_lines` of the
  lines that the most texts share.
  """
  whole_tokens = [*whole_tokens, *shared_lines(texts, whole_lines)]
  special = [PAD, *codec.SPECIAL_TOKENS]
  fixed = _NUM_BYTES + len(special) + len(whole_tokens)
  if vocab_size <= fixed:
    raise ConfigError(
      f"tokenizer.vocab_size={vocab_size} leaves no room to learn: bytes, "
      f"markers and whole tokens take {fixed}"
    )
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(Regex(_PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size - len(whole_tokens),
    special_tokens=special,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(_without(texts, whole_tokens), trainer)
  tokenizer.add_tokens(
    [AddedToken(text, normalized=False) for text in whole_tokens]
  )
  return tokenizer


def _without(texts: Sequence[str], whole_tokens: Sequence[str]) -> list[str]:
  """Returns the texts between whole tokens, in which no merge is ever used."""
  if not whole_tokens:
    return list(texts)
  longest_first = sorted(whole_tokens, key=len, reverse=True)
  whole = re.compile("|".join(map(re.escape, longest_first)))
  return [part for text in texts for part in whole.split(text) if part]


def shared_lines(texts: Sequence[str], at_most: int) -> list[str]:
  """Returns the lines that the most texts share, of four words or more.

  Of equally many the first to appear comes first, whatever hashes are drawn.
  """
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(
      dict.fromkeys(
        line for part in _MARKER.split(text) for line in part.split("\n")
      ).keys()
    )
  return [
    line
    for line, count in counts.most_common()
    if count >= _LINE_SHARE * len(texts) and len(line.split()) >= _LINE_WORDS
  ][:at_most]


def load_tokenizer(path: pathlib.Path) -> Tokenizer:
  """Reads a file that `Tokenizer.save` wrote. Raises `ConfigError`."""
  if not os.path.lexists(path):
    raise ConfigError(
      f"there is no tokenizer at {path}; run the warm start first, or point "
      "workdir at a run that has one"
    )
  text = read_text(path)
  try:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()  # which some file keeps of its last use
    tokenizer.no_padding()
    return tokenizer
  except BaseException as error:
    # The library raises Exception itself, and panics with what is none.
    if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
      raise
    raise ConfigError(
      f"{path} is no tokenizer that can be read: {error}; copy it again from "
      "where the model comes from"
    ) from error
