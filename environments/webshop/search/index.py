"""The shop's search engine: BM25 over stems, as Lucene computes it.

Upstream asks a Lucene index (k1 0.9, b 0.4). This is the same arithmetic on
numpy arrays, lengths rounded to a byte and all, so that what ties there ties
here. It ranks and does nothing else.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from environments.webshop.search.analyzer import stems

K1 = 0.9  # how soon a repeated term stops to count
B = 0.4  # how much a long text is held against a document


class Terms(Protocol):
  """Which number each term has."""

  def get(self, term: str, /) -> int | None:
    """The term's number, if it is there."""


class SearchIndex:
  """An immutable index of texts.

  Postings lie side by side, grouped by term: term t owns the entries
  `starts[t]:starts[t + 1]` of `documents` and `weights`. The arrays may be
  views of files.
  """

  def __init__(
    self,
    terms: Terms,
    starts: np.ndarray,
    documents: np.ndarray,
    weights: np.ndarray,
    *,
    num_texts: int,
  ):
    self._terms = terms
    self._starts = starts
    self._documents = documents
    self._weights = weights
    self._num_texts = num_texts

  def search(self, query: str, *, limit: int) -> list[int]:
    """Positions of the best texts, best first; ties keep the texts' order."""
    total = np.zeros(self._num_texts)
    for term, times in Counter(stems(query)).items():
      number = self._terms.get(term)
      if number is not None:
        own = slice(self._starts[number], self._starts[number + 1])
        weights = self._weights[own]
        # A word said twice counts twice.
        total[self._documents[own]] += (
          weights if times == 1 else times * weights
        )
    return _best(total.astype(np.float32), limit)


def index_of(texts: Sequence[str]) -> SearchIndex:
  """The index of texts that fit in memory."""
  terms: dict[str, int] = {}
  term, document, count, length = [], [], [], []
  for position, text in enumerate(texts):
    counts = Counter(stems(text))
    length.append(counts.total())
    for word, times in counts.items():
      term.append(terms.setdefault(word, len(terms)))
      document.append(position)
      count.append(times)
  terms_P = np.asarray(term, dtype=np.int32)
  order = np.argsort(terms_P, kind="stable")
  frequency = np.bincount(terms_P, minlength=len(terms))
  documents = np.asarray(document, dtype=np.int32)
  weights = bm25(
    np.asarray(count),
    np.asarray(length, dtype=np.int64)[documents],
    mean_length=float(np.mean(length)) if length else 1.0,
    frequency=frequency[terms_P],
    num_texts=len(texts),
  )
  return SearchIndex(
    terms,
    np.concatenate([[0], np.cumsum(frequency)]),
    documents[order],
    weights[order],
    num_texts=len(texts),
  )


def bm25(
  count: np.ndarray,
  length: np.ndarray,
  *,
  mean_length: float,
  frequency: np.ndarray | int,
  num_texts: int,
) -> np.ndarray:
  """idf c / (c + k1 (1 - b + b l / mean l)), per pair of term and text.

  With idf = ln(1 + (N - f + 0.5) / (f + 0.5)), which is never negative
  (Robertson and Zaragoza 2009, in Lucene's variant, without a factor k1 + 1).
  l is the length as Lucene stores it, in a byte. Lucene computes with floats,
  and so does this.
  """
  idf = np.log1p((num_texts - frequency + 0.5) / (frequency + 0.5))
  weight = idf.astype(np.float32)
  stored = _stored_lengths()[
    np.searchsorted(_stored_lengths(), length, "right") - 1
  ]
  share = np.float32(B) * stored.astype(np.float32) / np.float32(mean_length)
  inverse = np.float32(1) / (np.float32(K1) * (np.float32(1 - B) + share))
  one = np.float32(1)
  return np.asarray(
    weight - weight / (one + count.astype(np.float32) * inverse)
  )


@functools.cache
def _stored_lengths() -> np.ndarray:
  """The lengths that Lucene's byte can say; others are rounded down to one.

  Up to 40 all of them; from there on eight steps to each doubling.
  """
  first = 24  # told exactly, before the eights begin
  steps = [*range(8), *((8 + i) << e for e in range(28) for i in range(8))]
  return np.asarray([*range(first), *(first + step for step in steps)])


def _best(score: np.ndarray, limit: int) -> list[int]:
  """Positions of the highest scores above 0, best first, ties in order."""
  if len(score) > limit:
    least = np.partition(score, len(score) - limit)[len(score) - limit]
    candidates = np.flatnonzero(
      score >= max(least, np.nextafter(0, 1, dtype=np.float32))
    )
  else:
    candidates = np.flatnonzero(score > 0)
  order = np.argsort(-score[candidates], kind="stable")[:limit]
  return [int(i) for i in candidates[order]]
