"""Reads files of JSON objects one by one, in bounded memory.

A file, plain or gzipped, has one object per line, or is one array or one object
of JSON, which is parsed through a window of a few megabytes.
"""

import gzip
import json
import pathlib
from collections.abc import Iterator
from typing import Any, TextIO

from agentrl_jax.errors import ConfigError

WINDOW = 1 << 20  # characters read at a time
MAX_VALUE = 1 << 26  # characters of one listing
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()


def read_rows(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the place of each object in the file, and the object."""
  with open_text(path) as file:
    first = _first_character(file)
    file.seek(0)
    if first == "[":
      values: Iterator[tuple[str, Any]] = (
        (f"{path}, item {number}", value)
        for number, value in enumerate(_elements(path, file), 1)
      )
    else:
      values = (
        (f"{path}:{number}", _line(path, number, line))
        for number, line in enumerate(file, 1)
        if line.strip()
      )
    for place, value in values:
      if not isinstance(value, dict):
        raise ConfigError(f"{place} is not a JSON object: {value!r:.40}")
      yield place, value


def read_members(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields the names and values of the one object in the file."""
  with open_text(path) as file:
    window = _JsonWindow(path, file)
    if window.next_mark() != "{":
      raise ConfigError(f"{path} does not hold one JSON object of listings")
    while (mark := window.next_mark()) != "}":
      if mark == ",":
        continue
      window.step_back()
      name = window.next_value()
      if window.next_mark() != ":":
        raise ConfigError(f"{path}: no ':' after {name!r:.40}")
      yield str(name), window.next_value()


def open_text(path: pathlib.Path) -> TextIO:
  """Opens a file, and decompresses it if its name ends in .gz."""
  if not path.is_file():
    raise ConfigError(
      f"webshop: {str(path)!r} is not a file; give a file of listings (see "
      "environments/webshop/README.md), or none to generate shops"
    )
  if path.suffix == ".gz":
    return gzip.open(path, "rt", encoding="utf-8", newline="\n")
  return path.open(encoding="utf-8", newline="\n")


def _first_character(file: TextIO) -> str:
  while (character := file.read(1)) and character in _BLANK:
    pass
  return character


def _line(path: pathlib.Path, number: int, line: str) -> Any:
  try:
    return json.loads(line)
  except ValueError as error:
    raise ConfigError(f"{path}:{number} is not JSON: {error}") from error


def _elements(path: pathlib.Path, file: TextIO) -> Iterator[Any]:
  window = _JsonWindow(path, file)
  window.next_mark()
  while (mark := window.next_mark()) != "]":
    if mark != ",":
      window.step_back()
      yield window.next_value()


class _JsonWindow:
  """The part of a JSON text that is being parsed."""

  def __init__(self, path: pathlib.Path, file: TextIO):
    self._path = path
    self._file = file
    self._text = ""
    self._position = 0
    self._is_last = False

  def next_mark(self) -> str:
    """Consumes the next character that is not blank."""
    while True:
      while self._position < len(self._text):
        self._position += 1
        if self._text[self._position - 1] not in _BLANK:
          return self._text[self._position - 1]
      if self._is_last:
        raise ConfigError(f"{self._path} ends in the middle of its JSON")
      self._read_on()

  def step_back(self) -> None:
    self._position -= 1

  def next_value(self) -> Any:
    """Parses the value that begins at the next mark."""
    self.next_mark()
    self.step_back()
    while True:
      try:
        value, end = _DECODER.raw_decode(self._text, self._position)
        # A number that ends with the window may continue beyond it.
        if self._is_last or end < len(self._text):
          self._position = end
          return value
      except ValueError as error:
        if self._is_last or len(self._text) - self._position > MAX_VALUE:
          context = self._text[self._position : self._position + 60]
          raise ConfigError(
            f"{self._path} is not JSON near {context!r}: {error}"
          ) from error
      self._read_on()

  def _read_on(self) -> None:
    # Doubles the window, so that a long value is not parsed too often.
    more = self._file.read(max(WINDOW, len(self._text) - self._position))
    self._is_last = not more
    self._text = self._text[self._position :] + more
    self._position = 0
