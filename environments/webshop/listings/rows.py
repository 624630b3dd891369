"""Reads files of JSON objects: one per line, or one array or object of them.

A file may be gzipped.
"""

import gzip
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from agentrl_jax.errors import ConfigError


def read_rows(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the place of each object in the file, and the object."""
  text = _read_text(path)
  if text.lstrip().startswith("["):
    items = enumerate(_parse(str(path), text), 1)
    values = ((f"{path}, item {number}", value) for number, value in items)
  else:
    values = (
      (place := f"{path}:{number}", _parse(place, line))
      for number, line in enumerate(text.split("\n"), 1)
      if line.strip()
    )
  for place, value in values:
    if not isinstance(value, dict):
      raise ConfigError(f"{place} is not a JSON object: {value!r:.40}")
    yield place, value


def read_members(path: pathlib.Path) -> dict[str, Any]:
  """Returns the one object in the file."""
  members = _parse(str(path), _read_text(path))
  if not isinstance(members, dict):
    raise ConfigError(f"{path} does not hold one JSON object of listings")
  return members


def _read_text(path: pathlib.Path) -> str:
  """Reads a file, and decompresses it if its name ends in .gz."""
  if not path.is_file():
    raise ConfigError(
      f"webshop: {str(path)!r} is not a file; give a file of listings (see "
      "environments/webshop/README.md), or none to generate shops"
    )
  data = path.read_bytes()
  return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def _parse(place: str, text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError as error:
    raise ConfigError(f"{place} is not JSON: {error}") from error
