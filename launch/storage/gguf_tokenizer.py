"""Builds a Hugging Face tokenizer from the metadata of a GGUF file.

A GGUF file has the vocabulary, the merges and the kinds of tokens; how text is
cut before merging it only names (`tokenizer.ggml.pre`). The patterns behind
these names, and what else follows from them, are those of llama.cpp's
`llama-vocab.cpp` and of the published tokenizer.json files. A name that is not
known here is refused: with other cuts the model reads other tokens.

SentencePiece's vocabularies (Gemma 3) have scores in place of merges, and cut
nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from agentrl_jax.data.records import MAX_STOPS
from agentrl_jax.errors import ConfigError, suggestion

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
  _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%s}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
  rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
  rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
  r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cut:
  """Way of cutting text into the pieces that are merged."""

  pattern: str  # of pieces
  then_gpt2: bool = False  # cut what is left by GPT-2's pattern
  nfc: bool = False  # texts are composed first
  whole_pieces: bool = False  # one that is a token needs no merges
  bos: bool = False  # texts begin with the token of that name


_NONE = r"(?!)"
_CUTS = {
  "gpt-2": _Cut(pattern=_NONE, then_gpt2=True),
  "smollm": _Cut(pattern=r"\p{N}", then_gpt2=True),
  "llama-bpe": _Cut(pattern=_WORDS % 3, whole_pieces=True, bos=True),
  "smaug-bpe": _Cut(pattern=_WORDS % 3),
  "qwen2": _Cut(pattern=_WORDS % 1, nfc=True),
  "deepseek-r1-qwen": _Cut(pattern=_WORDS % 1),
  "glm4": _Cut(pattern=_WORDS % 3),
  "tekken": _Cut(pattern=_TEKKEN, whole_pieces=True, bos=True),
}
_SAME = {
  **dict.fromkeys(("llama3", "llama-v3", "falcon3"), "llama-bpe"),
  **dict.fromkeys(("starcoder", "refact", "codeshell"), "smollm"),
  **dict.fromkeys(("mpt", "olmo", "phi-2"), "gpt-2"),
  "megrez": "qwen2",
  "chatglm-bpe": "glm4",
}
# Kinds of tokens, as `tokenizer.ggml.token_type` numbers them.
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 3, 4, 5, 6
_SPACE = "▁"  # what SentencePiece writes for one
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Control tokens that end a turn of some family, whichever id is called eos.
_STOPS = (
  "<|eot_id|>",
  "<|im_end|>",
  "<end_of_turn>",
  "<|eom_id|>",
  "<|user|>",
  "<|observation|>",
  "<|endoftext|>",
  "<|end_of_text|>",
)


class GGUFTokenizer:
  """Tokenizer of a GGUF file, and what its chat files say.

  `metadata` are the file's keys that begin with "tokenizer.". Raises
  `ConfigError` if text would be cut otherwise than the model has learned, and
  KeyError, ValueError or IndexError for a file that is damaged.
  """

  def __init__(self, metadata: Mapping[str, Any]):
    self._metadata = metadata
    self._cut = self._read_cut()
    self.tokens = self._read_tokens()
    # Without them, markers such as <|im_end|> would be cut like text.
    self._kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    ids = {name: self._id(long) for name, long in _NAMES.items()}
    self.ids = {name: id for name, id in ids.items() if id is not None}

  def tokenizer(self) -> Tokenizer:
    """Builds the contents of tokenizer.json."""
    cut = self._cut
    vocabulary = {
      token: id
      for id, token in enumerate(self.tokens)
      if not (self._kinds[id] == _UNUSED and token == f"[PAD{id}]")
    }
    bpe = models.BPE(
      vocabulary, self._merges(vocabulary), ignore_merges=cut.whole_pieces
    )
    built = Tokenizer(bpe)
    if cut.nfc:
      built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.Split(Regex(cut.pattern), "isolated"),
        pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=cut.then_gpt2
        ),
      ]
    )
    built.decoder = decoders.ByteLevel()
    for kind in (_CONTROL, _USER_DEFINED):
      built.add_tokens(
        [
          AddedToken(token, special=kind == _CONTROL, normalized=False)
          for token, of in zip(self.tokens, self._kinds, strict=True)
          if of == kind
        ]
      )
    if ends := self._ends():
      built.post_processor = processors.TemplateProcessing(
        single=[*filter(None, (ends.get("bos"), "$A", ends.get("eos")))],
        special_tokens=[(text, self.ids[name]) for name, text in ends.items()],
      )
    return built

  def config(self) -> dict[str, Any]:
    """Returns tokenizer_config.json, without the length of the context."""
    named = {f"{name}_token": self.tokens[id] for name, id in self.ids.items()}
    return {
      "tokenizer_class": "PreTrainedTokenizerFast",
      **named,
      "clean_up_tokenization_spaces": False,
      **self._chat_template(),
    }

  def generation_config(self) -> dict[str, Any]:
    """Returns generation_config.json: the tokens that end an answer."""
    stops = [self._id(name) for name in ("eos", "eot", "eom")]
    controls = {
      token: id
      for id, (token, kind) in enumerate(
        zip(self.tokens, self._kinds, strict=True)
      )
      if kind == _CONTROL
    }
    known = [id for id in stops if id is not None]
    known += [controls[text] for text in _STOPS if text in controls]
    named = {f"{name}_token_id": id for name, id in self.ids.items()}
    named.pop("unk_token_id", None)
    unique = list(dict.fromkeys(known))[:MAX_STOPS]
    return named | ({"eos_token_id": unique} if unique else {})

  def _read_cut(self) -> _Cut:
    kind = self._metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
      raise ConfigError(
        f"tokenizer.ggml.model={kind!r} is not read here; gpt2 is, which is "
        "byte-level BPE, and llama, SentencePiece's: take a model of Llama 3, "
        "Qwen2.5, Qwen3, GLM-4 or Gemma 3, or its Hugging Face folder"
      )
    name = self._metadata.get("tokenizer.ggml.pre")
    known = sorted([*_CUTS, *_SAME])
    if name not in known:
      raise ConfigError(
        f"tokenizer.ggml.pre={name!r} does not say how text is cut before it "
        f"is merged{suggestion(str(name), known)}; known are "
        f"{', '.join(known)}. Take a newer file of this model, or its Hugging "
        "Face folder"
      )
    return _CUTS[_SAME.get(name, name)]

  def _read_tokens(self) -> list[str]:
    tokens = self._metadata["tokenizer.ggml.tokens"]
    return [token or f"[EMPTY_{id}]" for id, token in enumerate(tokens)]

  def _merges(self, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for line in self._metadata["tokenizer.ggml.merges"]:
      first, _, second = line.partition(" ")
      if not {first, second, first + second} <= vocabulary.keys():
        raise ConfigError(
          f"tokenizer.ggml.merges has {line!r}, which does not merge two "
          "tokens of the vocabulary to a third: the file is damaged; fetch it "
          "again"
        )
      pairs.append((first, second))
    return pairs

  def _ends(self) -> dict[str, str]:
    """Returns the tokens that every text begins and ends with, by name."""
    default = {"bos": self._cut.bos, "eos": False}
    return {
      name: self.tokens[self.ids[name]]
      for name, added in default.items()
      if self._metadata.get(f"tokenizer.ggml.add_{name}_token", added)
      and name in self.ids
    }

  def _chat_template(self) -> dict[str, Any]:
    """Returns the chat template, or all of them by name, if there is any."""
    key = "tokenizer.chat_template"
    sources = {
      name.removeprefix(f"{key}.").replace(key, "default"): source
      for name, source in self._metadata.items()
      if name == key or name.startswith(f"{key}.")
    }
    if not sources.keys() - {"default"}:
      source = sources.get("default")
      return {"chat_template": source} if source else {}
    listed = [{"name": n, "template": s} for n, s in sources.items()]
    return {"chat_template": listed}

  def _id(self, name: str) -> int | None:
    id: int | None = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
    return id


class _Pieces(GGUFTokenizer):
  """SentencePiece's BPE: of two neighbours the best piece is made first.

  Characters that are no piece are read as bytes.
  """

  def __init__(self, metadata: Mapping[str, Any]):
    """Raises as `GGUFTokenizer` does."""
    super().__init__(metadata)
    # What users defined is found before anything is merged, but for runs of
    # spaces, which are merged first, as in the published files.
    self._kinds = [
      _NORMAL if kind == _USER_DEFINED and _SPACE in token else kind
      for token, kind in zip(self.tokens, self._kinds, strict=True)
    ]

  def tokenizer(self) -> Tokenizer:
    """Builds the contents of tokenizer.json."""
    built = super().tokenizer()
    built.model.unk_token = self.tokens[self.ids["unk"]]
    built.model.fuse_unk = built.model.byte_fallback = True
    built.normalizer = normalizers.Replace(" ", _SPACE)
    built.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    built.decoder = decoders.Sequence(
      [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return built

  def _read_cut(self) -> _Cut:
    if self._metadata.get("tokenizer.ggml.add_space_prefix", True):
      raise ConfigError(
        "tokenizer.ggml.add_space_prefix=True puts a space before texts, as "
        "in Llama 2: take this model's Hugging Face folder"
      )
    return _Cut(pattern=_NONE)

  def _merges(self, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns all pairs that make a piece, those of the best pieces first.

    What users defined comes before all others, in its own order. Of the pairs
    of one piece that with the longer first part comes first, as in the
    published files.
    """
    scores = self._metadata["tokenizer.ggml.scores"]
    kinds = self._metadata["tokenizer.ggml.token_type"]
    found = []
    for piece, id in vocabulary.items():
      if kinds[id] in (_CONTROL, _BYTE):
        continue
      rank = (0, id) if kinds[id] == _USER_DEFINED else (1, -scores[id])
      for cut in range(len(piece) - 1, 0, -1):
        pair = piece[:cut], piece[cut:]
        if vocabulary.keys() >= {*pair}:
          found.append((*rank, -cut, pair))
    return [pair for *_, pair in sorted(found)]

  def _read_tokens(self) -> list[str]:
    return [token.replace(" ", _SPACE) for token in super()._read_tokens()]


def tokenizer_of(metadata: Mapping[str, Any]) -> GGUFTokenizer:
  """Returns the tokenizer of a file's kind; see `GGUFTokenizer`."""
  has_scores = metadata.get("tokenizer.ggml.model") == "llama"
  return (_Pieces if has_scores else GGUFTokenizer)(metadata)
