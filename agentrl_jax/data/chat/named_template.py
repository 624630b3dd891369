"""Chat templates by name, over the markers of whatever model they are for.

`hermes` and `llama` show tools, calls and tools' replies as text of a system
message, an assistant's and a user's, and leave these three roles to the model's
own template, whose source follows theirs. `plain` shows no tools at all. A base
model without a template gets turns between its tokenizer's special tokens.

The result is the source of one template, which any program renders alike.
"""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_jax.data.chat.jinja_template import JinjaTemplate
from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.hugging_face_files import read_text

NAMES = ("hermes", "llama", "plain")
_FOLDER = pathlib.Path(__file__).parent / "templates"
_SYSTEM, _USER = "\ufdd0S", "\ufdd0U"  # texts that no template has


def source_of(
  template: str,
  own: str | None,
  *,
  names: Mapping[str, Any],
  has_token: Callable[[str], bool],
  parsed: Callable[[str], JinjaTemplate],
) -> str:
  """Returns the source of `chat.template`, a name or the path of a file.

  `own` is the source of the model's own template, `names` its special tokens.
  Raises `ConfigError` for no such name or file, and for a model that has
  neither a template nor special tokens to put between turns.
  """
  if template not in NAMES:
    return _file(template)
  own = _turns(template, names, has_token) if own is None else own
  if template == "plain":
    return _part("plain") + own
  takes = json.dumps(_takes_system(parsed(own)))
  return (
    f"{_part(template)}{{%- set takes_system = {takes} -%}}\n"
    f"{_part('as_text')}{own}"
  )


def _part(name: str) -> str:
  return (_FOLDER / f"{name}.jinja").read_text()


def _file(path: str) -> str:
  if not pathlib.Path(path).is_file():
    raise ConfigError(
      f"chat.template={path!r} is no file and none of {', '.join(NAMES)}"
      f"{suggestion(path, NAMES)}: give the path of a Jinja file, one of these "
      "names, or '' for the model's own template"
    )
  return read_text(pathlib.Path(path))


def _takes_system(own: JinjaTemplate) -> bool:
  """Returns whether a template shows a system message (Gemma's refuses)."""
  messages = [
    {"role": "system", "content": _SYSTEM},
    {"role": "user", "content": _USER},
  ]
  try:
    return _SYSTEM in own.render(messages, prompt=True)
  except ConfigError:
    return False


def _turns(
  template: str, names: Mapping[str, Any], has_token: Callable[[str], bool]
) -> str:
  """Returns a template of turns for a model that was published without one."""
  eos, bos = names.get("eos_token", ""), names.get("bos_token", "")
  if has_token("<|im_start|>") and has_token("<|im_end|>"):
    turn = ("", "<|im_start|>", "\n", "<|im_end|>\n")
  elif has_token("<|start_header_id|>") and has_token("<|eot_id|>"):
    ends = ("<|end_header_id|>\n\n", "<|eot_id|>")
    turn = (bos, "<|start_header_id|>", *ends)
  elif eos:
    turn = ("" if bos == eos else bos, "", "\n", f"{eos}\n")
  else:
    raise ConfigError(
      f"chat.template={template} needs a token that ends a turn, and the model "
      "has no template of its own, no <|im_end|>, no <|eot_id|>, and no "
      "eos_token in tokenizer_config.json: name its eos_token there"
    )
  named = zip(("first", "begin", "middle", "end"), turn, strict=True)
  sets = [f"{{%- set {name} = {json.dumps(text)} -%}}" for name, text in named]
  return "\n".join([*sets, _part("turns")])
