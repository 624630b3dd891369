"""Loads the chat codec of a pretrained model from its files.

A model that was trained from scratch here has no chat template; its tokenizer's
markers show that its chat is `codec.CompactTemplate`.

tokenizer.json            the vocabulary; required
tokenizer_config.json     names of special tokens, perhaps the chat template
chat_template.jinja       the chat template; overrides that of the config
generation_config.json    the stop tokens
config.json               the stop tokens, for models without the former
"""

import dataclasses
import datetime
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from agentrl_jax.data.chat.codec import SPECIAL_TOKENS, ChatCodec
from agentrl_jax.data.chat.family_template import FamilyTemplate
from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.data.chat.marked_text import markers_of
from agentrl_jax.errors import ConfigError

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
FILES = (
  TOKENIZER,
  TOKENIZER_CONFIG,
  TEMPLATE,
  "generation_config.json",
  "config.json",
)
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_FOR_TOOLS = "tool_use"  # of a config that lists several templates


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatConfig:
  """Variables of a model's own chat template; the `chat` section."""

  date: str  # that a template writes as today's
  thinking: bool  # False: without thoughts, if the template can

  def __post_init__(self) -> None:
    try:
      datetime.date.fromisoformat(self.date)
    except ValueError as error:
      raise ConfigError(
        f"chat.date={self.date!r} is no date such as 2024-07-26"
      ) from error


def load_chat(folder: pathlib.Path, config: ChatConfig) -> ChatCodec:
  """Loads the codec of the model in `folder`. Raises `ConfigError`."""
  path = folder / TOKENIZER
  if not path.is_file():
    raise ConfigError(
      f"there is no {TOKENIZER} in {folder}: pretrained.path must name the "
      "folder of a Hugging Face model, tokenizer files included"
    )
  tokenizer = Tokenizer.from_file(str(path))
  config_json = _json(folder / TOKENIZER_CONFIG)
  source = _source(folder, config_json)
  if source is None and _is_compact(tokenizer):
    return ChatCodec(tokenizer)
  if source is None:
    raise ConfigError(
      f"{folder} has neither {TEMPLATE} nor a chat_template in "
      f"{TOKENIZER_CONFIG}; a base model has none: copy its chat model's"
    )
  jinja = JinjaTemplate(
    source,
    names=_names(config_json) | {"enable_thinking": config.thinking},
    date=datetime.date.fromisoformat(config.date),
  )
  template = FamilyTemplate(
    jinja,
    markers_of(tokenizer),
    _stops(folder, config_json, tokenizer),
  )
  return ChatCodec(tokenizer, template)


def copy_chat(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies the files that `load_chat` reads, all of them or none."""
  partial = target.with_suffix(".partial")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  for name in FILES:
    if (source / name).is_file():
      shutil.copyfile(source / name, partial / name)
  partial.replace(target)


def _json(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads a JSON object; an empty one if there is no file."""
  if not path.is_file():
    return {}
  try:
    body = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ConfigError(f"{path} is not JSON: {error}") from error
  if not isinstance(body, dict):
    raise ConfigError(f"{path} holds no JSON object")
  return body


def _is_compact(tokenizer: Tokenizer) -> bool:
  """True if every marker of `codec.CompactTemplate` is a token."""
  return all(tokenizer.token_to_id(each) is not None for each in SPECIAL_TOKENS)


def _source(folder: pathlib.Path, config_json: Mapping[str, Any]) -> str | None:
  """Returns the chat template's Jinja source, None without one."""
  path = folder / TEMPLATE
  if path.is_file():
    return path.read_text(encoding="utf-8")
  source = config_json.get("chat_template")
  if isinstance(source, list):
    named = {entry["name"]: entry["template"] for entry in source}
    source = named.get(_FOR_TOOLS, named.get("default"))
  return source if isinstance(source, str) else None


def _names(config_json: Mapping[str, Any]) -> dict[str, str]:
  """Returns special tokens by the names that templates use."""
  return {
    name: _text(config_json[name]) for name in _NAMES if config_json.get(name)
  }


def _text(token: Any) -> str:
  return str(token["content"] if isinstance(token, dict) else token)


def _stops(
  folder: pathlib.Path, config_json: Mapping[str, Any], tokenizer: Tokenizer
) -> list[str]:
  """Returns the stop tokens that the model's files name."""
  stops: list[str] = []
  for name in ("generation_config.json", "config.json"):
    eos = _json(folder / name).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    known = (tokenizer.id_to_token(id) for id in ids if id is not None)
    stops += [text for text in known if text is not None]
  if config_json.get("eos_token"):
    stops.append(_text(config_json["eos_token"]))
  return list(dict.fromkeys(stops))
