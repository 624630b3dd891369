"""Loads the chat codec of a pretrained model from its files.

A model that was trained from scratch here has no chat template; its tokenizer's
markers show that its chat is `codec.CompactTemplate`.

tokenizer.json            the vocabulary; required
tokenizer_config.json     special tokens, more tokens, perhaps the chat template
chat_template.jinja       the chat template; overrides that of the config
chat_template.json        the one of a processor, where there is no other
additional_chat_templates/tool_use.jinja
                          the one for tools; overrides all of them
generation_config.json    the stop tokens
config.json               more stop tokens, and the size of the vocabulary
"""

import dataclasses
import datetime
import os
import pathlib
import reprlib
import shutil
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from agentrl_jax.data.chat.codec import SPECIAL_TOKENS, ChatCodec
from agentrl_jax.data.chat.family_template import FamilyTemplate
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.chat.marked_text import markers_of
from agentrl_jax.data.chat.named_template import source_of
from agentrl_jax.data.chat.tokenizer import load_tokenizer
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from agentrl_jax.hugging_face_files import holder_of, read_object, read_text
from agentrl_jax.keys import Section, key

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
PROCESSOR_TEMPLATE = "chat_template.json"
TEMPLATES = "additional_chat_templates"
GENERATION_CONFIG, MODEL_CONFIG = "generation_config.json", "config.json"
FILES = (
  TOKENIZER,
  TOKENIZER_CONFIG,
  TEMPLATE,
  PROCESSOR_TEMPLATE,
  GENERATION_CONFIG,
  MODEL_CONFIG,
)
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FOR_TOOLS = "tool_use"  # of a config that lists several templates


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatConfig(Section, section="chat"):
  """The chat template and its variables; the `chat` section."""

  template: str = key(
    "",
    "'': the model's own; a Jinja file's path; or, over the model's markers, "
    "hermes or llama (tools and calls as text), plain (tasks without tools)",
  )
  date: str = key(
    "2024-07-26", '"today" of the template, the same on every day'
  )
  thinking: bool = key(True, "False: the generation prompt closes the thought")
  compact_calls: bool = key(
    False,
    "with a grammar of calls: their JSON has no white space but one space "
    "after commas and colons, as templates write it. Fewer tokens a call",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    try:
      datetime.date.fromisoformat(self.date)
    except ValueError as error:
      raise ConfigError(
        f"chat.date={self.date!r} is no date such as 2024-07-26"
      ) from error


def load_chat(folder: pathlib.Path, config: ChatConfig) -> ChatCodec:
  """Loads the codec of the model in `folder`. Raises `ConfigError`.

  `config.template` takes the place of the folder's own template.
  """
  folder = holder_of(folder, TOKENIZER)
  with reading(folder):
    codec = _load(folder, config)
  vocab_size = _json(folder / MODEL_CONFIG).get("vocab_size")
  if type(vocab_size) is int and codec.vocab_size > vocab_size:
    raise ConfigError(
      f"{folder / TOKENIZER} has {codec.vocab_size} tokens, and {MODEL_CONFIG} "
      f"beside it makes it {vocab_size}: the files are of two models"
    )
  return codec


def _load(folder: pathlib.Path, config: ChatConfig) -> ChatCodec:
  files = _read(folder, config)
  if files.template is None:
    return ChatCodec(files.tokenizer)
  stops = _stops(folder, files.names, files.tokenizer)
  try:
    markers = markers_of(files.tokenizer)
    template = FamilyTemplate(
      files.template, markers, stops, compact_calls=config.compact_calls
    )
    return ChatCodec(files.tokenizer, template)
  except ConfigError as error:
    raise ConfigError(f"{folder}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _Files:
  """Contents of a folder: its tokenizer, special tokens and template."""

  tokenizer: Tokenizer
  names: Mapping[str, str]
  template: JinjaTemplate | None  # None: the compact template


def _read(folder: pathlib.Path, config: ChatConfig) -> _Files:
  path = folder / TOKENIZER
  if not os.path.lexists(path):
    raise ConfigError(
      f"there is no {TOKENIZER} in {folder}: pretrained.path must name the "
      "folder of a Hugging Face model, tokenizer files included. If it has "
      "another tokenizer's files, transformers makes one of them: `python -c "
      '"from transformers import AutoTokenizer as A; '
      f"A.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
    )
  tokenizer = load_tokenizer(path)
  config_json = _json(folder / TOKENIZER_CONFIG)
  _add_tokens(tokenizer, folder, config_json)
  source = _source(folder, config_json)
  names = _names(config_json)
  if source is None and _is_compact(tokenizer):
    if config.template or config.compact_calls:
      raise ConfigError(
        f"chat.template={config.template!r} and chat.compact_calls="
        f"{config.compact_calls}, and the model in {folder} was trained from "
        "scratch here, in a format of its own: leave both out"
      )
    return _Files(tokenizer, names, None)
  if source is None and not config.template:
    raise ConfigError(
      f"{folder} has neither {TEMPLATE} nor a chat_template in "
      f"{TOKENIZER_CONFIG}, as a base model: set chat.template=hermes (or "
      "plain, for tasks without tools), or copy its chat model's"
    )
  try:
    return _Files(tokenizer, names, _template(source, config, names, tokenizer))
  except ConfigError as error:
    raise ConfigError(f"{folder}: {error}") from error


def _template(
  own: str | None,
  config: ChatConfig,
  names: Mapping[str, str],
  tokenizer: Tokenizer,
) -> JinjaTemplate:
  """Reads the template that the config asks for; `own` is the folder's."""

  def parsed(source: str) -> JinjaTemplate:
    return JinjaTemplate(
      source,
      names={**names, "enable_thinking": config.thinking},
      date=datetime.date.fromisoformat(config.date),
    )

  if own is not None and not config.template:
    return parsed(own)
  return parsed(
    source_of(
      config.template,
      own,
      names=names,
      has_token=lambda text: tokenizer.token_to_id(text) is not None,
      parsed=parsed,
    )
  )


def copy_chat(
  source: pathlib.Path, target: pathlib.Path, config: ChatConfig
) -> None:
  """Copies the files that `load_chat` reads, all of them or none.

  The copy's own template is the one that `config.template` asks for.
  """
  source, partial = holder_of(source, TOKENIZER), target.with_suffix(".partial")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  for name in FILES:
    if (source / name).is_file():
      shutil.copyfile(source / name, partial / name)
  is_chosen = config.template or (source / TEMPLATES).is_dir()
  if is_chosen and (template := _read(source, config).template):
    (partial / TEMPLATE).write_text(template.source)
  partial.replace(target)


def _json(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads a JSON object; an empty one if there is no file."""
  return read_object(path) if os.path.lexists(path) else {}


def _is_compact(tokenizer: Tokenizer) -> bool:
  """True if every marker of `codec.CompactTemplate` is a token."""
  return all(tokenizer.token_to_id(each) is not None for each in SPECIAL_TOKENS)


def _source(folder: pathlib.Path, config_json: Mapping[str, Any]) -> str | None:
  """Returns the chat template's Jinja source, None without one."""
  paths = {path.stem: path for path in (folder / TEMPLATES).glob("*.jinja")}
  if os.path.lexists(folder / TEMPLATE):
    paths["default"] = folder / TEMPLATE
  source: Any = {name: read_text(path) for name, path in paths.items()}
  source = source or config_json.get("chat_template")
  if source is None:
    source = _json(folder / PROCESSOR_TEMPLATE).get("chat_template")
  if isinstance(source, list):
    source = {
      entry.get("name"): entry.get("template")
      for entry in source
      if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
  if isinstance(source, dict):
    source = source.get(_FOR_TOOLS, source.get("default", source))
  if not isinstance(source, str | None):
    raise TypeError(f"chat_template={reprlib.repr(source)} is no text")
  return source


def _add_tokens(
  tokenizer: Tokenizer, folder: pathlib.Path, config_json: Mapping[str, Any]
) -> None:
  """Adds the tokens that stand beside tokenizer.json, as transformers does."""
  extra: Any = next(filter(None, map(config_json.get, _EXTRA)), [])
  extra = extra.values() if isinstance(extra, dict) else extra
  special = [
    text
    for name, text in _names(config_json).items()
    if name in _NAMES[:2] or tokenizer.token_to_id(text) is not None
  ]
  special += [t["content"] if isinstance(t, dict) else t for t in extra]
  declared = config_json.get("added_tokens_decoder", {})
  tokens = {int(id): AddedToken(**of) for id, of in declared.items()}
  tokenizer.add_tokens([tokens[id] for id in sorted(tokens)])
  added = tokenizer.get_added_tokens_decoder().values()
  known = {token.content for token in added}
  tokenizer.add_special_tokens([t for t in special if t not in known])
  for id, token in tokens.items():
    if tokenizer.token_to_id(token.content) != id:
      raise ConfigError(
        f"{folder}: {token.content!r} is token {id} beside {TOKENIZER}, and "
        f"{tokenizer.token_to_id(token.content)} with it: the files are of two "
        "models"
      )


def _names(config_json: Mapping[str, Any]) -> dict[str, str]:
  """Returns special tokens by the names that templates use."""
  tokens = {name: config_json.get(name) for name in _NAMES}
  return {
    name: token["content"] if isinstance(token, dict) else token
    for name, token in tokens.items()
    if token
  }


def _stops(
  folder: pathlib.Path, names: Mapping[str, str], tokenizer: Tokenizer
) -> list[str]:
  """Returns the stop tokens that the model's files name."""
  stops: list[str] = []
  for name in (GENERATION_CONFIG, MODEL_CONFIG):
    eos = _json(folder / name).get("eos_token_id")
    for id in eos if isinstance(eos, list) else [eos]:
      if id is None:
        continue
      text = tokenizer.id_to_token(id)
      if text is None:
        raise ConfigError(
          f"{folder / name}: eos_token_id={reprlib.repr(eos)} must be the id "
          f"of a token in {TOKENIZER}, or a list of such ids, or null"
        )
      stops.append(text)
  if "eos_token" in names:
    stops.append(names["eos_token"])
  return list(dict.fromkeys(stops))
