"""Reads the small files of a Hugging Face folder: JSON objects and templates.

Whatever is wrong with such a file is one `ConfigError` that names it. A byte
order mark is refused, since transformers does not skip it either.
"""

import json
import os
import pathlib
from typing import Any

from agentrl_jax.errors import ConfigError

_POINTER = b"version https://git-lfs.github.com/spec/"
# PEFT's: what adapters there are, and the model that they belong to.
ADAPTERS, _BASE = "adapter_config.json", "base_model_name_or_path"
_AGAIN = "copy it again from where the model comes from"


def refuse_pointer(path: pathlib.Path, head: bytes) -> None:
  """Raises `ConfigError` if a file's first bytes are those of a pointer."""
  if head.startswith(_POINTER):
    raise ConfigError(
      f"{path} is a pointer of Git LFS, in place of the file: run `git lfs "
      f"pull` in {path.parent}, or download the folder with `hf download`"
    )


def base_of(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder of the model that a folder's adapters belong to.

  That is `folder` itself if it has no adapters. Raises `ConfigError` if
  adapter_config.json names no folder of a model.
  """
  path = folder / ADAPTERS
  if not path.is_file():
    return folder
  named = read_object(path).get(_BASE)
  base = folder / named if isinstance(named, str) and named else folder
  has_model = (base / "config.json").is_file()
  if base == folder or not has_model or (base / ADAPTERS).is_file():
    raise ConfigError(
      f"{folder} has adapters ({path.name}) of the model {named!r}, which is "
      f"no folder of a model: download that model, and set {_BASE} in {path} "
      "to its folder, absolute or relative to that of the adapters. If the "
      f"weights beside {path.name} are merged already, delete it"
    )
  return base


def holder_of(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the folder that has a file: adapters may lack what their base has.

  Raises as `base_of` does.
  """
  return folder if os.path.lexists(folder / name) else base_of(folder)


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
