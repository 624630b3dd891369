"""Grammars that the tiny policy can follow, and checks of their answers."""

import functools
import json
import re

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentrl_jax.data.grammar.grammars import Grammars
from tests.rollout import small

STOP = small.VOCAB - 1
_MERGES = ("a b", "t r", "tr u", "tru e", '" :')  # tokens of several letters
_LETTERS = 'abcdefghijklmnopqrstuvwxyz0123456789{}":,.-'
SCHEMA = {
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 5},
    "sure": {"type": "boolean"},
  },
  "required": ["name", "sure"],
  "additionalProperties": False,
}
GRAMMARS = {
  "choice": 'start: "yes" | "no" | "maybe"',
  "digits": r"start: /[0-9]{2,6}/",
  "json": f"start: %json {json.dumps(SCHEMA)}",
}
# No token has the last letter, so no answer can be completed.
DEAD_END = 'start: "ab" "É"'


@functools.cache
def tokenizer() -> Tokenizer:
  """A tokenizer of `small.VOCAB` tokens, of which the last ends answers."""
  texts = [*_LETTERS, *(merge.replace(" ", "") for merge in _MERGES)]
  texts += [chr(0x100 + n) for n in range(STOP - len(texts))]  # odd bytes
  bpe = Tokenizer(
    models.BPE(
      vocab={text: n for n, text in enumerate(texts)},
      merges=[tuple(merge.split(" ")) for merge in _MERGES],
    )
  )
  bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = decoders.ByteLevel()
  bpe.add_special_tokens([AddedToken("<|end|>", special=True)])
  assert bpe.token_to_id("<|end|>") == STOP, bpe.get_vocab()
  return bpe


@functools.cache
def grammars(vocab_size: int = small.VOCAB) -> Grammars:
  return Grammars(
    tokenizer(), markers=[STOP], stop_tokens=[STOP], vocab_size=vocab_size
  )


def text_of(sampled) -> str:
  """Decodes an answer, without its stop token."""
  return tokenizer().decode([int(t) for t in sampled], skip_special_tokens=True)


def is_complete(name: str, text: str) -> bool:
  """Returns whether a text is complete under a grammar of `GRAMMARS`."""
  if name == "choice":
    return text in ("yes", "no", "maybe")
  if name == "digits":
    return re.fullmatch("[0-9]{2,6}", text) is not None
  try:
    value = json.loads(text)
  except ValueError:
    return False
  return (
    list(value) == ["name", "sure"]
    and isinstance(value["name"], str)
    and len(value["name"]) <= 5
    and isinstance(value["sure"], bool)
  )


def allowed(grammar: str, sampled) -> np.ndarray:
  """Returns the mask before each token of an answer, as bool [A, V]."""
  mask_AW = grammars().masks(grammar, sampled)
  bits = np.unpackbits(mask_AW.view(np.uint8), axis=1, bitorder="little")
  return bits[:, : small.VOCAB].astype(bool)
