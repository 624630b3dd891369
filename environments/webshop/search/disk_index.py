"""A search index on disk: built in bounded memory, searched where it lies.

Building keeps a few million postings in memory, sorts them and sets them aside
as a chunk; at the end the chunks are merged into one array per field. Opening
maps the arrays, so that a process takes the memory of what it searches.
"""

import array
import bisect
import mmap
import pathlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from environments.webshop.search.analyzer import stems
from environments.webshop.search.index import SearchIndex, bm25

CHUNK = 1 << 22  # postings held in memory while building


class IndexBuilder:
  """Takes texts one by one, and leaves an index in `folder`."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._chunks = folder / "chunks"
    self._chunks.mkdir(parents=True)
    self._num_chunks = 0
    self._terms: dict[str, int] = {}
    self._lengths = array.array("i")
    self._new_chunk()

  def add(self, text: str) -> None:
    """The next text."""
    counts = Counter(stems(text))
    position = len(self._lengths)
    self._lengths.append(counts.total())
    for word, times in counts.items():
      self._term.append(self._terms.setdefault(word, len(self._terms)))
      self._document.append(position)
      self._count.append(times)
    if len(self._term) >= CHUNK:
      self._set_aside()

  def finish(self) -> None:
    """Writes the index. Nothing can be added afterwards."""
    self._set_aside()
    words = sorted(self._terms, key=str.encode)
    rank = np.empty(len(words), dtype=np.int64)
    rank[[self._terms[word] for word in words]] = np.arange(len(words))
    self._terms.clear()
    write_texts(self._folder / "terms", words)
    frequency = sum(
      (
        np.bincount(rank[term], minlength=len(words))
        for term, _, _ in self._set_asides()
      ),
      start=np.zeros(len(words), dtype=np.int64),
    )
    starts = np.concatenate([[0], np.cumsum(frequency)])
    np.save(self._folder / "starts.npy", starts)
    self._merge(rank, frequency, starts)
    shutil.rmtree(self._chunks)

  def _new_chunk(self) -> None:
    self._term = array.array("i")
    self._document = array.array("i")
    self._count = array.array("i")

  def _set_aside(self) -> None:
    chunk = [
      np.frombuffer(field, dtype=np.int32)
      for field in (self._term, self._document, self._count)
    ]
    if len(chunk[0]):
      np.save(self._chunks / f"{self._num_chunks}.npy", np.stack(chunk))
      self._num_chunks += 1
    self._new_chunk()

  def _set_asides(self) -> Iterator[np.ndarray]:
    for number in range(self._num_chunks):
      yield np.load(self._chunks / f"{number}.npy")

  def _merge(
    self, rank: np.ndarray, frequency: np.ndarray, starts: np.ndarray
  ) -> None:
    lengths = np.frombuffer(self._lengths, dtype=np.int32)
    mean_length = float(lengths.mean()) if len(lengths) else 1.0
    documents = self._make_array("documents", np.int32, starts[-1])
    weights = self._make_array("weights", np.float32, starts[-1])
    filled = starts[:-1].copy()  # where the next posting of each term goes
    for term, document, count in self._set_asides():
      order = np.argsort(rank[term], kind="stable")
      ranked, document, count = rank[term][order], document[order], count[order]
      own = np.bincount(ranked, minlength=len(rank))
      first = np.concatenate([[0], np.cumsum(own)[:-1]])
      place = filled[ranked] + np.arange(len(ranked)) - first[ranked]
      documents[place] = document
      weights[place] = bm25(
        count,
        lengths[document],
        mean_length=mean_length,
        frequency=frequency[ranked],
        num_texts=len(lengths),
      )
      filled += own
    documents.flush()
    weights.flush()

  def _make_array(
    self, name: str, dtype: type[np.generic], size: int
  ) -> np.memmap:
    return np.lib.format.open_memmap(
      self._folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(int(size),)
    )


def open_index(folder: pathlib.Path, *, num_texts: int) -> SearchIndex:
  """The index that a builder left in `folder`."""
  words = SortedTexts(folder / "terms")
  return SearchIndex(
    words,
    open_array(folder / "starts.npy"),
    open_array(folder / "documents.npy"),
    open_array(folder / "weights.npy"),
    num_texts=num_texts,
  )


def open_array(path: pathlib.Path) -> np.ndarray:
  """The array in a file, mapped; an empty one cannot be."""
  array_ = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else None
  return np.load(path) if array_ is None else np.asarray(array_)


def write_texts(stem: pathlib.Path, texts: Sequence[str]) -> None:
  """Writes texts, and where each begins, for `Texts`."""
  begins = np.zeros(len(texts) + 1, dtype=np.int64)
  with stem.with_suffix(".txt").open("wb") as file:
    for number, text in enumerate(texts, 1):
      begins[number] = begins[number - 1] + file.write(text.encode())
  np.save(stem.with_suffix(".npy"), begins)


class SortedTexts:
  """Texts in a file, sorted by their bytes; says which number a text has."""

  def __init__(self, stem: pathlib.Path):
    self._begins = open_array(stem.with_suffix(".npy"))
    self._bytes = map_file(stem.with_suffix(".txt"))

  def __len__(self) -> int:
    return len(self._begins) - 1

  def __getitem__(self, number: int) -> bytes:
    if not 0 <= number < len(self):
      raise IndexError(number)
    return self._bytes[self._begins[number] : self._begins[number + 1]]

  def get(self, text: str) -> int | None:
    """The number of `text`, if it is there."""
    wanted = text.encode()
    number = bisect.bisect_left(self, wanted)
    found = number < len(self) and self[number] == wanted
    return number if found else None


def map_file(path: pathlib.Path) -> bytes | mmap.mmap:
  """The bytes of a file, mapped; an empty file cannot be."""
  with path.open("rb") as file:
    if not path.stat().st_size:
      return b""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
