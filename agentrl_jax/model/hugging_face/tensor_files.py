"""Files in the safetensors format, read in parts and written as a whole.

A file is a JSON header, which says where each tensor's bytes are, and those
bytes. Reading maps the file and releases each page after use, so that a host
holds a part of one tensor at a time, however large the file. The format's own
library copies whole tensors and keeps its mappings, but reads files written
here. Where an index says which file holds a tensor, other copies of it are
passed over. Numbers that are NaN or infinite are refused as they are read.
"""

import dataclasses
import hashlib
import json
import math
import mmap
import os
import pathlib
import reprlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from agentrl_jax.errors import AgentRLError, CheckpointError, ConfigError
from agentrl_jax.hugging_face_files import (
  ADAPTERS,
  base_of,
  read_object,
  refuse_pointer,
)

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
ADAPTER_TENSORS = "adapter_model.safetensors"
DTYPES: Mapping[str, np.dtype] = {
  "F32": np.dtype(np.float32),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F16": np.dtype(np.float16),
}
# Least bits, without the sign, of a number that is infinite or none.
_NOT_FINITE: Mapping[np.dtype, int] = {
  DTYPES["F32"]: 0x7F80_0000,
  DTYPES["BF16"]: 0x7F80,
  DTYPES["F16"]: 0x7C00,
}
_BYTES = {"U8": np.dtype(np.uint8)}  # of quantised weights
_STRIP = 1 << 21  # bytes that are mapped at a time
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_BLOCKS, _BLOCK = 64, 4096  # of a file's digest: their number, and bytes
# Keys of config.json that change no computation.
_UNDECISIVE = (
  "_name_or_path",
  "bos_token_id",
  "dtype",
  "eos_token_id",
  "max_position_embeddings",
  "pad_token_id",
  "torch_dtype",
  "transformers_version",
  "use_cache",
)
_LONGEST_NAME = 255  # bytes of a file's name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """The header entry of one tensor."""

  dtype: np.dtype
  shape: tuple[int, ...]
  offset: int  # of its first byte in the file


class TensorFile:
  """One file, open for reading. Use it as a context manager."""

  def __init__(
    self,
    path: pathlib.Path,
    names: Collection[str] | None = None,
    *,
    has_bytes: bool = False,
  ):
    """Opens the tensors of these names; None opens all.

    With `has_bytes`, some may be bytes, which `mxfp4` knows the meaning of.
    Raises `CheckpointError` if the file is truncated or missing, or lacks one
    of the names.
    """
    self.path = path
    self._dtypes = {**DTYPES, **(_BYTES if has_bytes else {})}
    try:
      with path.open("rb") as file:
        self.entries = self._read_header(file, names)
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
      raise CheckpointError(f"{path} cannot be read: {error}") from error

  def __enter__(self) -> "TensorFile":
    return self

  def __exit__(self, *_: Any) -> None:
    self._map.close()

  def read(
    self, name: str, shape: tuple[int, ...], index: tuple[slice, ...], start=0
  ) -> np.ndarray:
    """Copies `index` of the numbers from `start` on, taken as `shape`."""
    entry = self.entries[name]
    out = np.empty(
      [len(range(*s.indices(n))) for s, n in zip(index, shape, strict=True)],
      entry.dtype,
    )
    first, last, _ = index[0].indices(shape[0])
    row = math.prod(shape[1:]) * entry.dtype.itemsize
    step = max(_STRIP // max(row, 1), 1)
    for begin in range(first, last, step):
      end = min(begin + step, last)
      view = np.frombuffer(
        self._map,
        entry.dtype,
        (end - begin) * math.prod(shape[1:]),
        entry.offset + start * entry.dtype.itemsize + begin * row,
      ).reshape(end - begin, *shape[1:])
      strip = out[begin - first : end - first]
      strip[...] = view[(slice(None), *index[1:])]
      del view  # or an error would keep the file from being closed
      self._map.madvise(mmap.MADV_DONTNEED)
      require_finite(strip, name, self.path)
    return out

  def _read_header(
    self, file: BinaryIO, names: Collection[str] | None
  ) -> dict[str, Entry]:
    size = os.fstat(file.fileno()).st_size
    refuse_pointer(self.path, file.read(64))
    file.seek(0)
    head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
    if 8 + length > size or length > _MAX_HEADER:
      raise CheckpointError(
        f"{self.path} has {size} bytes, too few for its header: it is cut "
        "short, or no safetensors file. Fetch it again"
      )
    try:
      lines = json.loads(file.read(length))
      lines.pop("__metadata__", None)
      wanted = lines.keys() if names is None else names
      if missing := sorted(set(wanted) - set(lines)):
        raise CheckpointError(
          f"{self.path} lacks {missing[0]}, which {INDEX_FILE} says it has: "
          "the folder's files are of two models. Fetch it again"
        )
      in_order = sorted(wanted, key=lambda name: lines[name]["data_offsets"])
      return {
        name: self._entry(name, lines[name], 8 + length, size)
        for name in in_order
      }
    except (
      ValueError,
      KeyError,
      TypeError,
      AttributeError,
      RecursionError,
    ) as error:
      raise CheckpointError(
        f"the header of {self.path} is not that of a safetensors file: "
        f"{error!r}. Fetch it again"
      ) from error

  def _entry(
    self, name: str, line: Mapping[str, Any], base: int, size: int
  ) -> Entry:
    if line["dtype"] not in self._dtypes:
      raise CheckpointError(
        f"{name} in {self.path} has dtype {line['dtype']}; what can be read is "
        f"{', '.join(DTYPES)}: take the checkpoint that is not quantised"
      )
    dtype, shape = self._dtypes[line["dtype"]], tuple(line["shape"])
    begin, end = line["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
      raise ValueError(f"{name} has {line}")
    if end - begin != math.prod(shape) * dtype.itemsize or base + end > size:
      raise CheckpointError(
        f"{name} in {self.path} should take {math.prod(shape)} x "
        f"{dtype.itemsize} bytes up to byte {base + end} of {size}: the file "
        "is cut short or damaged. Fetch it again"
      )
    return Entry(dtype=dtype, shape=shape, offset=base + begin)


def require_finite(part: np.ndarray, name: str, path: pathlib.Path) -> None:
  """Raises `CheckpointError` if a part of a tensor has NaN or infinity."""
  if part.dtype != np.uint8 and not _is_finite(part):
    raise CheckpointError(
      f"{name} in {path} holds NaN or infinity: the model is damaged; fetch it "
      "again, or start from another"
    )


def _is_finite(part: np.ndarray) -> bool:
  """Looks at bits: numpy's `isfinite` takes eight times as long for BF16."""
  bits = part.view(f"u{part.dtype.itemsize}")
  least = _NOT_FINITE[part.dtype] << 1
  return not bits.size or int((bits << 1).max()) < least


def tensor_files(
  folder: pathlib.Path,
) -> dict[pathlib.Path, frozenset[str] | None]:
  """Lists the files of a checkpoint, and the tensors for which each counts.

  The index says both; None stands for all tensors of the single file. Raises
  `CheckpointError` if there is neither, or a file is missing, and `ConfigError`
  for an index that is none.
  """
  index = folder / INDEX_FILE
  if os.path.lexists(index):
    names: dict[str, frozenset[str] | None] = {**_read_index(index)}
  elif (folder / SINGLE_FILE).exists():
    names = {SINGLE_FILE: None}
  else:
    raise CheckpointError(
      f"{folder} has neither {INDEX_FILE} nor {SINGLE_FILE}; weights in other "
      "formats are not read: convert them with transformers' save_pretrained"
    )
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    raise CheckpointError(
      f"{index} names {', '.join(missing)}, which {folder} lacks: fetch the "
      "rest of the checkpoint"
    )
  return {folder / name: names[name] for name in names}


def model_digest(folder: str | pathlib.Path) -> str | None:
  """Returns a digest of a model's weights and config; None without weights.

  Adapters are a part of the model, and so is their base.
  Of each file it takes the size, the header and blocks at even distances, so
  that it reads little of any model, and weights that were trained differ.
  """
  if not folder:
    return None
  folder = pathlib.Path(folder)
  try:
    base = base_of(folder)
    described = read_object(base / "config.json")
    paths = [*tensor_files(base)]
    if base != folder:
      described["adapters"] = read_object(folder / ADAPTERS)
      paths.append(folder / ADAPTER_TENSORS)
  except AgentRLError:
    return None  # whoever reads the model says what it lacks
  decisive = {k: v for k, v in described.items() if k not in _UNDECISIVE}
  digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
  for path in paths:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
      length = int.from_bytes(file.read(8), "little")
      digest.update(file.read(min(length, _MAX_HEADER)))
      for n in range(_BLOCKS):
        file.seek(size * n // _BLOCKS)
        digest.update(file.read(_BLOCK))
  return digest.hexdigest()[:16]


def _read_index(path: pathlib.Path) -> dict[str, frozenset[str]]:
  """Reads the tensors of each file, in the order of the files' names."""
  file_of = read_object(path).get("weight_map")
  if not isinstance(file_of, dict) or not file_of:
    raise ConfigError(
      f"{path} has no weight_map that names the file of each tensor: copy it "
      "again from where the model comes from"
    )
  wrong = [file for file in file_of.values() if not _is_beside(file)]
  if wrong:
    raise ConfigError(
      f"{path}: weight_map has {reprlib.repr(wrong[0])} where the name of a "
      "file in the same folder is expected: copy it again from where the model "
      "comes from"
    )
  found: dict[str, set[str]] = {}
  for name, file in file_of.items():
    found.setdefault(file, set()).add(name)
  return {file: frozenset(found[file]) for file in sorted(found)}


def _is_beside(name: Any) -> bool:
  """True for the name of a file in the same folder, and no path to another."""
  return (
    isinstance(name, str)
    and name == pathlib.PurePath(name).name
    and name not in ("", "..")
    and "\0" not in name
    and len(os.fsencode(name)) <= _LONGEST_NAME
  )


def write_file(
  path: pathlib.Path,
  entries: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
  arrays: Iterable[np.ndarray],
) -> None:
  """Writes tensors in the order of `entries`, taking one array at a time."""
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  names = {dtype: name for name, dtype in DTYPES.items()}
  offset = 0
  for name, (dtype, shape) in entries.items():
    end = offset + math.prod(shape) * dtype.itemsize
    header[name] = {
      "dtype": names[dtype],
      "shape": list(shape),
      "data_offsets": [offset, end],
    }
    offset = end
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays:
      file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()
    os.fsync(file.fileno())


def split_by_size(
  sizes: Mapping[str, int], limit: int
) -> Iterator[tuple[str, list[str]]]:
  """Yields file names and their tensors; only one tensor exceeds `limit`."""
  groups: list[list[str]] = []
  room = 0
  for name, size in sizes.items():
    if size > room:
      groups.append([])
      room = limit
    groups[-1].append(name)
    room -= size
  if len(groups) == 1:
    yield SINGLE_FILE, groups[0]
    return
  for n, names in enumerate(groups, 1):
    yield f"model-{n:05d}-of-{len(groups):05d}.safetensors", names


def write_index(
  folder: pathlib.Path, files: Mapping[str, list[str]], num_bytes: int
) -> None:
  """Writes the index of tensors by file, if there are several files."""
  if len(files) == 1:
    return
  index = {
    "metadata": {"total_size": num_bytes},
    "weight_map": {
      name: file for file, names in files.items() for name in names
    },
  }
  (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
