"""Reads the small files of a Hugging Face folder: JSON objects and templates.

Whatever is wrong with such a file is one `ConfigError` that names it. A byte
order mark is refused, since transformers does not skip it either.
"""

import json
import pathlib
from typing import Any

from agentrl_jax.errors import ConfigError

_POINTER = b"version https://git-lfs.github.com/spec/"
_AGAIN = "copy it again from where the model comes from"


def refuse_pointer(path: pathlib.Path, head: bytes) -> None:
  """Raises `ConfigError` if a file's first bytes are those of a pointer."""
  if head.startswith(_POINTER):
    raise ConfigError(
      f"{path} is a pointer of Git LFS, in place of the file: run `git lfs "
      f"pull` in {path.parent}, or download the folder with `hf download`"
    )


def refuse_adapters(folder: pathlib.Path) -> None:
  """Raises `ConfigError` for a folder of PEFT's adapters, a base or not."""
  path = folder / "adapter_config.json"
  if path.is_file():
    base = read_object(path).get("base_model_name_or_path")
    raise ConfigError(
      f"{folder} has adapters ({path.name}) of the model {base!r}, which are "
      "not read here. Merge them into it, and name the merged folder: `python "
      '-c "from peft import AutoPeftModelForCausalLM as A; A.from_pretrained('
      f"'{folder}').merge_and_unload().save_pretrained('merged')\"`, then copy "
      "the tokenizer's files there. If its weights are merged already, delete "
      f"{path.name}"
    )


def read_text(path: pathlib.Path) -> str:
  """Reads a file in UTF-8. Raises `ConfigError`."""
  try:
    content = path.read_bytes()
  except OSError as error:
    raise ConfigError(f"{path} cannot be read: {error}; {_AGAIN}") from error
  refuse_pointer(path, content)
  if content.startswith(b"\xef\xbb\xbf"):
    raise ConfigError(
      f"{path} begins with a byte order mark: save it as UTF-8 without one"
    )
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise ConfigError(f"{path} is not in UTF-8: {error}; {_AGAIN}") from error


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object. Raises `ConfigError`."""
  text = read_text(path)
  try:
    body = json.loads(text)
    json.dumps(body, ensure_ascii=False).encode()
  except (ValueError, RecursionError) as error:
    raise ConfigError(
      f"{path} is not JSON in UTF-8: {error}; {_AGAIN}"
    ) from error
  if not isinstance(body, dict):
    raise ConfigError(
      f"{path} holds {type(body).__name__} where a JSON object is expected; "
      f"{_AGAIN}"
    )
  return body
