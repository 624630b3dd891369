"""Search index on disk, built in bounded memory.

The builder collects a few million postings in memory and writes them as a
chunk; at the end it merges the chunks into one array per field. Opening maps
the arrays, so a process uses memory only for the terms that it searches.
"""

import bisect
import mmap
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import numpy as np

from environments.webshop.search.index import Postings, SearchIndex, bm25

CHUNK = 1 << 22  # postings in memory


class IndexBuilder:
  """Writes an index of texts into `folder`."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._chunks = folder / "chunks"
    self._chunks.mkdir(parents=True)
    self._num_chunks = 0
    self._postings = Postings()

  def add(self, text: str) -> None:
    self._postings.add(text)
    if len(self._postings) >= CHUNK:
      self._write_chunk()

  def finish(self) -> None:
    """Writes the index; no text can be added afterwards."""
    self._write_chunk()
    numbers = self._postings.terms
    terms = sorted(numbers, key=str.encode)
    rank = np.empty(len(terms), dtype=np.int64)
    rank[[numbers[term] for term in terms]] = np.arange(len(terms))
    numbers.clear()
    _write_texts(self._folder / "terms", terms)
    frequency = sum(
      (
        np.bincount(rank[term], minlength=len(terms))
        for term, _, _ in self._read_chunks()
      ),
      start=np.zeros(len(terms), dtype=np.int64),
    )
    starts = np.concatenate([[0], np.cumsum(frequency)])
    np.save(self._folder / "starts.npy", starts)
    self._merge(rank, frequency, starts)
    shutil.rmtree(self._chunks)

  def _write_chunk(self) -> None:
    if len(self._postings):
      path = self._chunks / f"{self._num_chunks}.npy"
      np.save(path, self._postings.take())
      self._num_chunks += 1

  def _read_chunks(self) -> Iterator[np.ndarray]:
    for number in range(self._num_chunks):
      yield np.load(self._chunks / f"{number}.npy")

  def _merge(
    self, rank: np.ndarray, frequency: np.ndarray, starts: np.ndarray
  ) -> None:
    lengths = self._postings.lengths
    mean_length = self._postings.mean_length
    documents = self._make_array("documents", np.int32, starts[-1])
    weights = self._make_array("weights", np.float32, starts[-1])
    filled = starts[:-1].copy()  # next free posting of each term
    for term, document, count in self._read_chunks():
      order = np.argsort(rank[term], kind="stable")
      ranked, document, count = rank[term][order], document[order], count[order]
      num_postings = np.bincount(ranked, minlength=len(rank))
      first = np.concatenate([[0], np.cumsum(num_postings)[:-1]])
      place = filled[ranked] + np.arange(len(ranked)) - first[ranked]
      documents[place] = document
      weights[place] = bm25(
        count,
        lengths[document],
        mean_length=mean_length,
        frequency=frequency[ranked],
        num_texts=len(lengths),
      )
      filled += num_postings
    documents.flush()
    weights.flush()

  def _make_array(
    self, name: str, dtype: type[np.generic], size: int
  ) -> np.memmap:
    return np.lib.format.open_memmap(
      self._folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(int(size),)
    )


def open_index(folder: pathlib.Path, *, num_texts: int) -> SearchIndex:
  """Opens the index that a builder wrote into `folder`."""
  return SearchIndex(
    _SortedTexts(folder / "terms").get,
    open_array(folder / "starts.npy"),
    open_array(folder / "documents.npy"),
    open_array(folder / "weights.npy"),
    num_texts=num_texts,
  )


def open_array(path: pathlib.Path) -> np.ndarray:
  """Maps the array in a file; an empty array cannot be mapped, and is read."""
  is_empty = path.stat().st_size <= 128  # bytes of numpy's header
  return np.asarray(np.load(path, mmap_mode=None if is_empty else "r"))


def _write_texts(stem: pathlib.Path, texts: Sequence[str]) -> None:
  begins = np.zeros(len(texts) + 1, dtype=np.int64)
  with stem.with_suffix(".txt").open("wb") as file:
    for number, text in enumerate(texts, 1):
      begins[number] = begins[number - 1] + file.write(text.encode())
  np.save(stem.with_suffix(".npy"), begins)


class MappedTexts:
  """Texts in a mapped file, `stem`.txt, with their offsets in `stem`.npy."""

  def __init__(self, stem: pathlib.Path):
    self._begins = open_array(stem.with_suffix(".npy"))
    self._bytes = _map_file(stem.with_suffix(".txt"))

  def __len__(self) -> int:
    return len(self._begins) - 1

  def __getitem__(self, number: int) -> bytes:
    if not 0 <= number < len(self):
      raise IndexError(number)
    return self._bytes[self._begins[number] : self._begins[number + 1]]


class _SortedTexts(MappedTexts):
  """Texts that are sorted by their bytes, with the number of each."""

  def get(self, text: str) -> int | None:
    encoded = text.encode()
    number = bisect.bisect_left(self, encoded)
    if number == len(self) or self[number] != encoded:
      return None
    return number


def _map_file(path: pathlib.Path) -> bytes | mmap.mmap:
  """Maps the bytes of a file; an empty file cannot be mapped."""
  with path.open("rb") as file:
    if not path.stat().st_size:
      return b""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
