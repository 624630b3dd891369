"""Listings on disk: a shop of any size in the memory of what is looked at.

A store is a folder: the rows as JSON, the ids in order, the search index, and
which goals there are. It is built once per file, beside others, and opened by
as many processes as like; they share what the system keeps of it in memory.
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
from environments.webshop.listings.products import (
  Row,
  goals_of,
  product_of,
  read_product,
  written_in,
)
from environments.webshop.search.disk_index import (
  IndexBuilder,
  map_file,
  open_array,
  open_index,
)
from environments.webshop.search.index import SearchIndex
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Product

VERSION = 1  # of the folder's layout, and of all that is in it
KEPT_PRODUCTS = 2048  # read last, and kept as objects
_SAMPLES = 64  # of a file, by which it is told from others
_SAMPLE_BYTES = 1 << 16


class GoalList:
  """Which goals there are: whose, which of its own, written or made, whose.

  Upstream's order is that of the file. A goal belongs to one split by its text.
  """

  def __init__(self) -> None:
    self.products = array.array("i")
    self.numbers = array.array("h")  # which of the product's goals
    self.written = array.array("b")
    self.sides = array.array("b")  # position in SPLITS

  def add(self, position: int, row: Row, product: Product) -> None:
    """The goals of the product at `position`."""
    written = bool(written_in(row))
    for number, goal in enumerate(goals_of(row, product)):
      self.products.append(position)
      self.numbers.append(number)
      self.written.append(written)
      self.sides.append(SPLITS.index(split_of(goal.instruction)))

  def table(self) -> np.ndarray:
    """The goals as columns of one array."""
    columns = (self.products, self.numbers, self.written, self.sides)
    return np.stack([np.asarray(column, dtype=np.int32) for column in columns])


class StoredRows(Sequence[Row]):
  """The rows of a store."""

  def __init__(self, folder: pathlib.Path):
    self._begins = open_array(folder / "rows.npy")
    self._bytes = map_file(folder / "rows.txt")

  def __len__(self) -> int:
    return len(self._begins) - 1

  def __getitem__(self, position: int) -> Row:  # type: ignore[override]
    if not 0 <= position < len(self):
      raise IndexError(position)
    row: Row = json.loads(
      self._bytes[self._begins[position] : self._begins[position + 1]]
    )
    return row


class StoredProducts(Sequence[Product]):
  """The products of a store; the last ones read are kept."""

  def __init__(self, rows: StoredRows):
    self._rows = rows
    self._read = functools.lru_cache(KEPT_PRODUCTS)(self._read_one)

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, position: int) -> Product:  # type: ignore[override]
    return self._read(position)

  def _read_one(self, position: int) -> Product:
    return product_of(self._rows[position])


class StoredCatalogue(Catalogue):
  """The products of a store, found by id or by search."""

  def __init__(self, folder: pathlib.Path):
    self.rows = StoredRows(folder)
    self.products = StoredProducts(self.rows)
    self._ids = open_array(folder / "ids.npy")
    self._places = open_array(folder / "places.npy")
    self._found = open_index(folder, num_texts=len(self.rows))
    self.goals = np.load(folder / "goals.npy")

  def find(self, product_id: str) -> Product | None:
    """The product with this id, in whatever case."""
    wanted = product_id.lower().encode()
    at = int(np.searchsorted(self._ids, wanted))
    if at == len(self._ids) or self._ids[at] != wanted:
      return None
    return self.products[int(self._places[at])]

  @property
  def _index(self) -> SearchIndex:
    return self._found


def open_store(
  cache: pathlib.Path,
  sources: Sequence[pathlib.Path],
  rows: Iterable[tuple[str, Row]],
) -> StoredCatalogue:
  """The store of these files, built from their `rows` if it is not there."""
  folder = cache / _key(sources)
  if not folder.is_dir():
    try:
      cache.mkdir(parents=True, exist_ok=True)
      draft = pathlib.Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    except OSError as error:
      raise ConfigError(
        f"webshop keeps large files of listings below cache={str(cache)!r}, "
        f"where it may not write ({error}); name another folder"
      ) from error
    try:
      _build(draft, rows)
      if not folder.is_dir():
        draft.rename(folder)
    finally:
      shutil.rmtree(draft, ignore_errors=True)
  return StoredCatalogue(folder)


def default_cache() -> pathlib.Path:
  """Where stores are kept if nobody says."""
  home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return pathlib.Path(home).expanduser() / "agentrl_jax" / "webshop"


def _key(sources: Sequence[pathlib.Path]) -> str:
  """A name for the content of the files, by their sizes and samples of them."""
  digest = hashlib.blake2b(f"{VERSION}".encode(), digest_size=16)
  for path in sources:
    size = path.stat().st_size
    digest.update(f"{size};".encode())
    with path.open("rb") as file:
      for sample in range(_SAMPLES + 1):
        file.seek(max(0, size - _SAMPLE_BYTES) * sample // _SAMPLES)
        digest.update(file.read(_SAMPLE_BYTES))
  return digest.hexdigest()


def _build(folder: pathlib.Path, rows: Iterable[tuple[str, Row]]) -> None:
  index, goals = IndexBuilder(folder), GoalList()
  begins, ids = array.array("q", [0]), []
  with (folder / "rows.txt").open("wb") as file:
    for position, (place, row) in enumerate(rows):
      product = read_product(place, row)
      text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
      begins.append(begins[-1] + file.write(text.encode(errors="replace")))
      ids.append(product.id.lower().encode(errors="replace"))
      index.add(product.indexed_text)
      goals.add(position, row, product)
  np.save(folder / "rows.npy", np.asarray(begins))
  np.save(folder / "goals.npy", goals.table())
  _write_ids(folder, ids)
  index.finish()


def _write_ids(folder: pathlib.Path, ids: Sequence[bytes]) -> None:
  known = np.asarray(ids, dtype=np.bytes_)
  order = np.argsort(known, kind="stable")
  known = known[order]
  again = np.flatnonzero(known[1:] == known[:-1])
  if len(again):
    raise ConfigError(
      f"webshop: {len(again)} listings have ids that others have, such as "
      f"{known[again[0]].decode()!r}; every product needs an id of its own, "
      "whatever its case"
    )
  np.save(folder / "ids.npy", known)
  np.save(folder / "places.npy", order.astype(np.int32))
