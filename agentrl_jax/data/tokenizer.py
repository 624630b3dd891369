"""A small byte-level BPE, trained on the environments' own texts.

Digits stand alone, so that numbers are copied one digit at a time; a word takes
the space before it along. Every byte is in the vocabulary: whatever an
environment says can be written in tokens, and read back unchanged.
"""

import pathlib
from collections.abc import Iterable, Sequence

from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  pre_tokenizers,
  trainers,
)

from agentrl_jax.data import template
from agentrl_jax.errors import ConfigError

PAD = "<|pad|>"  # id 0
_PIECES = r"\d| ?[^\W\d_]+| ?[^\s\w]+|_|\n|\s"
_NUM_BYTES = 256


def train_tokenizer(
  texts: Iterable[str], *, vocab_size: int, whole_tokens: Sequence[str] = ()
) -> Tokenizer:
  """Learns a vocabulary; markers and `whole_tokens` are one token each."""
  special = [PAD, *template.SPECIAL_TOKENS]
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
  tokenizer.train_from_iterator(texts, trainer)
  tokenizer.add_tokens(
    [AddedToken(text, normalized=False) for text in whole_tokens]
  )
  return tokenizer


def load_tokenizer(path: pathlib.Path) -> Tokenizer:
  """Reads what `Tokenizer.save` wrote."""
  if not path.is_file():
    raise ConfigError(
      f"there is no tokenizer at {path}; run the warm start first, or point "
      "workdir at a run that has one"
    )
  return Tokenizer.from_file(str(path))
