"""Reads rows of data sets: JSON lines, a list of JSON objects, or parquet.

A line that cannot be read is a row with a problem: its reader decides whether
the file is refused or the row left out.
"""

import dataclasses
import importlib
import json
import pathlib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, refuse_constant

SUFFIXES = (".jsonl", ".json", ".parquet")


@dataclasses.dataclass(frozen=True)
class DatasetRow:
  """One row: its place in the file, and its columns or why there are none."""

  where: str  # as "data/train.jsonl, line 7"
  columns: Mapping[str, Any]
  problem: str = ""


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of rows in a folder, by name; of a file itself.

  Raises `ConfigError` for a folder without one.
  """
  if not path.is_dir():
    return [path]
  files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
  if files:
    return files
  inside = sorted(p.name for p in path.iterdir())
  raise ConfigError(
    f"{path} has no file that ends with {', '.join(SUFFIXES)}; it holds "
    f"{', '.join(inside[:12]) or 'nothing'}"
  )


def read_rows(path: pathlib.Path) -> Iterator[DatasetRow]:
  """Yields the rows in their order; blank lines are none.

  Raises `ConfigError` for a file that is not there or of another kind.
  """
  if path.suffix not in SUFFIXES:
    raise ConfigError(
      f"{path} ends with {path.suffix!r}; rows are read from files that end "
      f"with {', '.join(SUFFIXES)}"
    )
  try:
    if path.suffix == ".parquet":
      yield from _parquet_rows(path)
    else:
      yield from _json_rows(path)
  except OSError as error:
    raise ConfigError(
      f"{path} cannot be read: {error.strerror or error}"
    ) from error


def _json_rows(path: pathlib.Path) -> Iterator[DatasetRow]:
  with path.open("rb") as file:
    head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    if head.startswith(b"["):
      yield from _listed(path, file.read())
      return
    for number, line in enumerate(file, 1):  # by \n alone, not by U+2028
      if line.strip():
        yield _row(f"{path}, line {number}", line)


def _row(where: str, content: bytes) -> DatasetRow:
  try:
    return _checked(where, _parsed(content))
  except (ValueError, RecursionError) as error:
    return DatasetRow(where, {}, f"no JSON in UTF-8 ({error!s:.120})")


def _checked(where: str, columns: Any) -> DatasetRow:
  if isinstance(columns, dict):
    return DatasetRow(where, columns)
  return DatasetRow(where, {}, f"no JSON object: {reprlib.repr(columns)}")


def _listed(path: pathlib.Path, content: bytes) -> Iterator[DatasetRow]:
  try:
    rows = _parsed(content)
  except (ValueError, RecursionError) as error:
    raise ConfigError(
      f"{path} begins as a JSON list and is none in UTF-8 ({error!s:.120}); "
      "save it as a list of objects, or one object on each line"
    ) from error
  for number, columns in enumerate(rows, 1):
    yield _checked(f"{path}, entry {number}", columns)


def _parsed(content: bytes) -> Any:
  return json.loads(
    content.decode("utf-8-sig"),
    # pandas writes NaN for what is missing.
    parse_constant=lambda x: None if x == "NaN" else refuse_constant(x),
  )


def _parquet_rows(path: pathlib.Path) -> Iterator[DatasetRow]:
  try:
    parquet = importlib.import_module("pyarrow.parquet")
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"{path} needs pyarrow: pip install 'agentrl_jax[parquet]', or save the "
      "rows as JSON lines"
    ) from error
  number = 0
  try:
    # Opened here: pyarrow reads a missing name as that of a data set.
    with path.open("rb") as file:
      for batch in parquet.ParquetFile(file).iter_batches():
        for columns in batch.to_pylist(maps_as_pydicts="strict"):
          number += 1
          yield DatasetRow(f"{path}, row {number}", columns)
  except ValueError as error:  # of pyarrow, ArrowInvalid is one
    raise ConfigError(
      f"{path} is no parquet file that pyarrow can read: {error!s:.200}"
    ) from error
