"""Qwen's published tokenizer and chat template, for real lengths of prompts.

The vocabulary is `qwen.tiktoken` of the package dashscope, which `make
originals` installs, and the template that of Qwen3 in the package trl. Both are
read where they are and written to a folder as a Hugging Face model has them.
"""

import base64
import importlib.util
import json
import pathlib
import tempfile
from collections.abc import Mapping

from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
)

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import ChatConfig, load_chat

# The published pattern of Qwen 2 and later: digits one by one.
_PIECES = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VOCABULARY = "resources/qwen.tiktoken"
_TEMPLATE = "chat_templates/qwen3.jinja"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = (
  "<tool_call>",
  "</tool_call>",
  "<tool_response>",
  "</tool_response>",
  "<think>",
  "</think>",
)


def load_qwen() -> ChatCodec:
  """Makes the codec. Raises `FileNotFoundError` if a package is missing."""
  template = _file("trl", _TEMPLATE)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
      "eos_token": "<|im_end|>",
      "chat_template": template.read_text(encoding="utf-8"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_chat(folder, ChatConfig(thinking=False))


def make_tokenizer() -> Tokenizer:
  """Makes the tokenizer, in seconds. Raises as `load_qwen` does."""
  vocabulary = _file("dashscope", _VOCABULARY)
  ranks = {}
  for line in vocabulary.read_bytes().splitlines():
    token, rank = line.split()
    ranks[base64.b64decode(token)] = int(rank)
  text_of = _byte_texts()
  named = {
    "".join(text_of[byte] for byte in token): rank
    for token, rank in ranks.items()
  }
  merges = [
    tuple("".join(text_of[byte] for byte in part) for part in parts)
    for token in ranks
    if (parts := _last_merge(token, ranks))
  ]
  tokenizer = Tokenizer(models.BPE(vocab=named, merges=merges))
  tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(Regex(_PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(list(_SPECIAL))
  tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in _TAGS])
  return tokenizer


def has_qwen() -> bool:
  """Says if both packages are installed."""
  try:
    _file("trl", _TEMPLATE)
    _file("dashscope", _VOCABULARY)
  except FileNotFoundError:
    return False
  return True


def _file(package: str, path: str) -> pathlib.Path:
  """Returns a package's file, without importing the package."""
  spec = importlib.util.find_spec(package)
  folders = (spec and spec.submodule_search_locations) or ()
  for folder in folders:
    if (found := pathlib.Path(folder) / path).is_file():
      return found
  raise FileNotFoundError(
    f"{path} of the package {package} is not installed: run `make originals`"
  )


def _last_merge(
  token: bytes, ranks: Mapping[bytes, int]
) -> tuple[bytes, bytes] | None:
  """Returns the two parts that a token is merged from; None for a byte.

  A vocabulary of ranks lists no merges; they follow from merging the token's
  bytes, lowest rank first, without the token itself.
  """
  parts = [token[n : n + 1] for n in range(len(token))]
  while len(parts) > 2:
    pairs = [
      ranks.get(a + b, len(ranks))
      for a, b in zip(parts[:-1], parts[1:], strict=True)
    ]
    n = pairs.index(min(pairs))
    parts[n : n + 2] = [parts[n] + parts[n + 1]]
  return (parts[0], parts[1]) if len(parts) == 2 else None


def _byte_texts() -> dict[int, str]:
  """Returns the letter by which byte-level BPE writes each byte."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  texts = {byte: chr(byte) for byte in printable}
  rest = (byte for byte in range(256) if byte not in texts)
  return texts | {byte: chr(256 + n) for n, byte in enumerate(rest)}
