"""Small models' folders of every family: its markers, stops and template.

Templates are small ones with the structure of the real ones, which are not
ours to hand on. Real ones are used as well wherever they are found: in trl's
package, and in the folder that AGENTRL_CHAT_TEMPLATES names, as <name>.jinja.
"""

import dataclasses
import datetime
import functools
import importlib.util
import json
import os
import pathlib

from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

from agentrl_jax.data.chat import named_template
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.family_template import FamilyTemplate
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.chat.marked_text import markers_of

HERE = pathlib.Path(__file__).parent / "templates"
TEXTS = ["What is the price of red shoes?", "the sum of two numbers is"] * 9
# As in the tokenizers of Qwen and Llama-3: words, digits, signs, new lines.
PIECES = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class Family:
  """Markers and limits by which a family differs from the others."""

  special: tuple[str, ...]
  tags: tuple[str, ...] = ()  # tokens of their own that are not special
  bos: str = ""
  eos: str = ""
  stops: tuple[str, ...] = ()
  calls_per_answer: int = 2
  # Of SentencePiece: where it puts a space before a text; "": bytes instead.
  spaces: str = ""


QWEN = Family(
  special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
  tags=(
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
  ),
  eos="<|im_end|>",
  stops=("<|im_end|>", "<|endoftext|>"),
)
# As most models before 2025: no token for what begins a call or a thought.
SPELT = dataclasses.replace(QWEN, tags=())
LLAMA = Family(
  special=(
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
  ),
  bos="<|begin_of_text|>",
  eos="<|eot_id|>",
  stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
  calls_per_answer=1,
)
GLM = Family(
  special=(
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
  ),
  eos="<|endoftext|>",
  stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
)
GLM45 = dataclasses.replace(
  GLM,
  tags=(
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
  ),
)
HARMONY = Family(
  special=(
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
  ),
  eos="<|return|>",
  stops=("<|return|>", "<|endoftext|>", "<|call|>"),
  calls_per_answer=1,
)
GEMMA4 = Family(
  special=(
    "<eos>",
    "<bos>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|channel>",
    "<channel|>",
    '<|"|>',
  ),
  bos="<bos>",
  eos="<turn|>",
  stops=("<eos>", "<turn|>", "<|tool_response>"),
)
DEEPSEEK = Family(
  special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
  tags=(
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>",
  ),
  bos="<｜begin▁of▁sentence｜>",
  eos="<｜end▁of▁sentence｜>",
  stops=("<｜end▁of▁sentence｜>",),
)
# In place of its markers around calls, each call, a name, and an answer's.
DEEPSEEK_MARKS = str.maketrans(
  dict(
    zip(
      "⟦⟧⟨⟩¦∎",
      (*DEEPSEEK.tags[4:8], DEEPSEEK.tags[-1], DEEPSEEK.eos),
      strict=True,
    )
  )
)
TINYLLAMA = Family(special=("<s>", "</s>"), eos="</s>", stops=("</s>",))
MISTRAL = dataclasses.replace(
  TINYLLAMA, special=("<s>", "</s>", "[INST]", "[/INST]")
)
SENTENCE_PIECE = {
  f"{spaces}_{name}": dataclasses.replace(family, spaces=spaces)
  for spaces, names in (
    ("prepend", {"glm4": GLM, "qwen25": QWEN, "tinyllama": TINYLLAMA}),
    ("first", {"glm4": GLM, "mistral": MISTRAL, "tinyllama": TINYLLAMA}),
    ("always", {"qwen25": QWEN}),
    ("never", {"tinyllama": TINYLLAMA}),
    ("gemma", {"qwen25": QWEN}),
  )
  for name, family in names.items()
}
SMALL = {
  "qwen25": QWEN,
  "qwen3": QWEN,
  "llama31": LLAMA,
  "glm4": GLM,
  "qwen_coder": QWEN,
  "glm45": GLM45,
  "gptoss": HARMONY,
  "gemma4": GEMMA4,
  "deepseek3": DEEPSEEK,
  "deepseek31": DEEPSEEK,
}
WITHOUT_GRAMMAR = "gemma4"  # of its calls
WITH_GRAMMARS = tuple(name for name in SMALL if name != WITHOUT_GRAMMAR)
REAL = {
  "qwen2_5": QWEN,
  "qwen3": QWEN,
  "qwen3_instruct_2507": QWEN,
  "qwen3_5_nothink": QWEN,
  "qwen3_5_think": QWEN,
  "glm4moe": GLM45,
  "llama3_1": LLAMA,
  "llama3_2": LLAMA,
  "glm4_0414": GLM,
  "gptoss": HARMONY,
  "gemma4_v5": GEMMA4,
}


def real_templates() -> dict[str, pathlib.Path]:
  """Those of `REAL` that can be found, by name."""
  folders = [pathlib.Path(os.environ.get("AGENTRL_CHAT_TEMPLATES", "/none"))]
  if spec := importlib.util.find_spec("trl"):
    folders += [pathlib.Path(p) for p in spec.submodule_search_locations or ()]
  paths = [
    path
    for folder in folders
    for name in REAL
    for path in (
      folder / f"{name}.jinja",
      folder / f"chat_templates/{name}.jinja",
    )
    if path.is_file()
  ]
  return {path.stem: path for path in paths}


@functools.cache
def templates() -> dict[str, tuple[Family, str]]:
  """Every template at hand: its family and its source, by name."""
  found = {
    f"small_{name}": (family, (HERE / f"{name}.jinja").read_text())
    for name, family in SMALL.items()
  }
  for name in ("hermes", "llama"):
    found[f"named_{name}"] = (SPELT, named(name))
  for name, family in SENTENCE_PIECE.items():
    path = HERE / f"{name.partition('_')[2]}.jinja"
    own = path.read_text() if path.exists() else ""
    if family.eos == "</s>":  # shows no tools
      own = named("hermes", family, own or None)
    found[name] = (family, own)
  for name, path in real_templates().items():
    found[name] = (REAL[name], path.read_text())
  return found


def named(name: str, family: Family = SPELT, own: str | None = None) -> str:
  """The source of `chat.template=name` for a family's model."""
  return named_template.source_of(
    name,
    own,
    names={"bos_token": family.bos, "eos_token": family.eos},
    has_token=lambda text: text in family.special,
    parsed=lambda source: JinjaTemplate(
      source, names={}, date=datetime.date(2025, 2, 3)
    ),
  )


@functools.cache
def tokenizer_of(family: Family) -> Tokenizer:
  """A BPE with the family's markers behind its vocabulary."""
  tokenizer = (
    _sentence_piece(family.spaces)
    if family.spaces
    else _byte_level(ignore_merges=bool(family.bos))
  )
  tokenizer.add_special_tokens(list(family.special))
  tokenizer.add_tokens(
    [AddedToken(tag, normalized=False) for tag in family.tags]
  )
  if family.bos:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=f"{family.bos} $A",
      special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))],
    )
  return tokenizer


def _byte_level(*, ignore_merges: bool) -> Tokenizer:
  tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
  tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(Regex(PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(TEXTS, trainer)
  return tokenizer


def _sentence_piece(spaces: str) -> Tokenizer:
  """A BPE as in Llama 2 ("prepend"), as transformers 5 writes it, or Gemma 3.

  Words with the space before them are tokens, and so are two spaces, letters,
  and bytes in place of what else there is.
  """
  words = sorted({f"▁{word}" for text in TEXTS for word in text.split()})
  merges = dict.fromkeys(
    (word[:n], word[n]) for word in [*words, "▁▁"] for n in range(1, len(word))
  )
  symbols = [
    "<unk>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    *map(chr, range(33, 127)),
    *map("".join, merges),
  ]
  tokenizer = Tokenizer(
    models.BPE(
      {symbol: id for id, symbol in enumerate(dict.fromkeys(symbols))},
      [*merges],
      unk_token="<unk>",
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  replace = normalizers.Replace(" ", "▁")
  prefix = [normalizers.Prepend("▁")] if spaces == "prepend" else []
  if spaces in ("prepend", "gemma"):
    tokenizer.normalizer = normalizers.Sequence([*prefix, replace])
  else:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
      prepend_scheme=spaces, split=False
    )
  if spaces == "gemma":
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
  strip = [] if spaces == "gemma" else [decoders.Strip(" ", 1, 0)]
  tokenizer.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      *strip,
    ]
  )
  return tokenizer


def write_folder(folder: pathlib.Path, family: Family, source: str) -> None:
  """A model's folder, without its weights."""
  tokenizer = tokenizer_of(family)
  tokenizer.save(str(folder / "tokenizer.json"))
  described = {
    "bos_token": family.bos or None,
    "eos_token": {"content": family.eos, "special": True},
    "chat_template": source,
  }
  (folder / "tokenizer_config.json").write_text(json.dumps(described))
  stops = [tokenizer.token_to_id(text) for text in family.stops]
  (folder / "generation_config.json").write_text(
    json.dumps({"eos_token_id": stops})
  )


def codec_of(family: Family, source: str) -> ChatCodec:
  """The codec of a template on its family's tokenizer."""
  tokenizer = tokenizer_of(family)
  names = {"eos_token": family.eos}
  names |= {"bos_token": family.bos} if family.bos else {}
  jinja = JinjaTemplate(source, names=names, date=datetime.date(2024, 7, 26))
  template = FamilyTemplate(jinja, markers_of(tokenizer), family.stops)
  return ChatCodec(tokenizer, template)
