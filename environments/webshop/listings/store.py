"""Store of listings on disk, for shops larger than memory.

A store is a folder with the rows as JSON, the sorted ids, the search index and
the table of goals. It is built once per file. All processes that open it share
its mapped pages.
"""

import array
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Sequence

import numpy as np

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import expanded
from environments.webshop.listings import products
from environments.webshop.search import disk_index
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Product

VERSION = 1  # of the folder's layout and content
KEPT_PRODUCTS = 2048  # in the cache of products
_SAMPLES = 64  # of a file, for its key
_SAMPLE_BYTES = 1 << 16


class GoalTable:
  """Builds the table of all goals, in the order of the file."""

  def __init__(self) -> None:
    self._goals = array.array("i")

  def add(self, position: int, row: products.Row, product: Product) -> None:
    is_written = bool(products.written_instructions(row))
    for number, goal in enumerate(products.goals_of(row, product)):
      split_index = SPLITS.index(split_of(goal.instruction))
      self._goals.extend((position, number, is_written, split_index))

  def to_array(self) -> np.ndarray:
    """Returns [4, goals]: product, number, whether written, index of split."""
    goals = np.asarray(self._goals, dtype=np.int32).reshape(-1, 4)
    return np.ascontiguousarray(goals.T)


class StoredRows(Sequence[products.Row]):
  """The rows of a store."""

  def __init__(self, folder: pathlib.Path):
    self._texts = disk_index.MappedTexts(folder / "rows")

  def __len__(self) -> int:
    return len(self._texts)

  def __getitem__(self, position: int) -> products.Row:  # type: ignore[override]
    row: products.Row = json.loads(self._texts[position])
    return row


class StoredProducts(Sequence[Product]):
  """The products of a store, with a cache of recent ones."""

  def __init__(self, rows: StoredRows):
    self._rows = rows
    self._read = functools.lru_cache(KEPT_PRODUCTS)(self._read_one)

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, position: int) -> Product:  # type: ignore[override]
    return self._read(position)

  def _read_one(self, position: int) -> Product:
    return products.product_of(self._rows[position])


class StoredCatalogue(Catalogue):
  """The catalogue of a store."""

  def __init__(self, folder: pathlib.Path):
    self.rows = StoredRows(folder)
    self.products = StoredProducts(self.rows)
    self._ids = disk_index.open_array(folder / "ids.npy")
    self._places = disk_index.open_array(folder / "places.npy")
    self._index = disk_index.open_index(folder, num_texts=len(self.rows))
    self.goals = np.load(folder / "goals.npy")

  def find(self, product_id: str) -> Product | None:
    id_ = product_id.lower().encode()
    number = int(np.searchsorted(self._ids, id_))
    if number == len(self._ids) or self._ids[number] != id_:
      return None
    return self.products[int(self._places[number])]


def open_store(
  cache: pathlib.Path,
  sources: Sequence[pathlib.Path],
  rows: Iterable[tuple[str, products.Row]],
) -> StoredCatalogue:
  """Opens the store of these files, which is built from `rows` if missing."""
  folder = cache / _key(sources)
  if not folder.is_dir():
    try:
      cache.mkdir(parents=True, exist_ok=True)
      draft = pathlib.Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    except OSError as error:
      raise ConfigError(
        f"webshop stores large files of listings in cache={str(cache)!r}, "
        f"which it cannot write ({error}); give another folder"
      ) from error
    try:
      _build(draft, rows)
      if not folder.is_dir():
        draft.rename(folder)
    finally:
      shutil.rmtree(draft, ignore_errors=True)
  return StoredCatalogue(folder)


def default_cache() -> pathlib.Path:
  """Returns the default folder of stores."""
  home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return expanded(home) / "agentrl_jax" / "webshop"


def _key(sources: Sequence[pathlib.Path]) -> str:
  """Returns a hash of the files' sizes and of samples of their contents."""
  digest = hashlib.blake2b(f"{VERSION}".encode(), digest_size=16)
  for path in sources:
    size = path.stat().st_size
    digest.update(f"{size};".encode())
    with path.open("rb") as file:
      for sample in range(_SAMPLES + 1):
        file.seek(max(0, size - _SAMPLE_BYTES) * sample // _SAMPLES)
        digest.update(file.read(_SAMPLE_BYTES))
  return digest.hexdigest()


def _build(
  folder: pathlib.Path, rows: Iterable[tuple[str, products.Row]]
) -> None:
  index, goals = disk_index.IndexBuilder(folder), GoalTable()
  begins, ids = array.array("q", [0]), []
  with (folder / "rows.txt").open("wb") as file:
    for position, (place, row) in enumerate(rows):
      product = products.read_product(place, row)
      text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
      begins.append(begins[-1] + file.write(text.encode(errors="replace")))
      ids.append(product.id.lower().encode(errors="replace"))
      index.add(product.indexed_text)
      goals.add(position, row, product)
  np.save(folder / "rows.npy", np.asarray(begins))
  np.save(folder / "goals.npy", goals.to_array())
  _write_ids(folder, ids)
  index.finish()


def _write_ids(folder: pathlib.Path, ids: Sequence[bytes]) -> None:
  unsorted = np.asarray(ids, dtype=np.bytes_)
  order = np.argsort(unsorted, kind="stable")
  sorted_ids = unsorted[order]
  repeats = np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])
  if len(repeats):
    raise ConfigError(
      f"webshop: {len(repeats)} listings repeat ids of others, such as "
      f"{sorted_ids[repeats[0]].decode()!r}; every product needs an id of its "
      "own, ignoring case"
    )
  np.save(folder / "ids.npy", sorted_ids)
  np.save(folder / "places.npy", order.astype(np.int32))
