"""Search index of a shop: BM25 over stems, as Lucene computes it.

Upstream queries a Lucene index (k1 0.9, b 0.4). This is the same arithmetic on
numpy arrays, including lengths rounded to a byte, so that equal scores are
equal in both.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from environments.webshop.search.analyzer import stems

K1 = 0.9  # saturation of repeated terms
B = 0.4  # penalty of long texts


class Terms(Protocol):
  """A mapping from terms to their numbers."""

  def get(self, term: str, /) -> int | None:
    """Returns the term's number, or None if no text has the term."""


class SearchIndex:
  """An immutable index of texts.

  Postings are grouped by term: the entries `starts[t]:starts[t + 1]` of
  `documents` and `weights` belong to term t. The arrays may be mapped files.
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
    """Returns positions of texts, best first; ties keep the texts' order."""
    total = np.zeros(self._num_texts)
    for term, count in Counter(stems(query)).items():
      number = self._terms.get(term)
      if number is not None:
        postings = slice(self._starts[number], self._starts[number + 1])
        weights = self._weights[postings]
        total[self._documents[postings]] += (
          weights if count == 1 else count * weights
        )
    return _top(total.astype(np.float32), limit)


def build_index(texts: Sequence[str]) -> SearchIndex:
  """Builds an index in memory."""
  terms: dict[str, int] = {}
  term, document, count, length = [], [], [], []
  for position, text in enumerate(texts):
    counts = Counter(stems(text))
    length.append(counts.total())
    for stem, occurrences in counts.items():
      term.append(terms.setdefault(stem, len(terms)))
      document.append(position)
      count.append(occurrences)
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
  """Computes idf c / (c + k1 (1 - b + b l / mean l)) of terms and texts.

  idf = ln(1 + (N - f + 0.5) / (f + 0.5)) is never negative (Robertson and
  Zaragoza 2009, in Lucene's variant, without the factor k1 + 1). The length l
  is rounded to a byte and all values are float32, as in Lucene.
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
  """Returns the lengths that Lucene's byte can store; others round down.

  The byte stores each length up to 40, and then eight lengths per doubling.
  """
  num_exact = 24
  steps = [*range(8), *((8 + i) << e for e in range(28) for i in range(8))]
  return np.asarray([*range(num_exact), *(num_exact + step for step in steps)])


def _top(score: np.ndarray, limit: int) -> list[int]:
  """Returns positions of the highest scores above 0, best first."""
  if len(score) > limit:
    least = np.partition(score, len(score) - limit)[len(score) - limit]
    candidates = np.flatnonzero(
      score >= max(least, np.nextafter(0, 1, dtype=np.float32))
    )
  else:
    candidates = np.flatnonzero(score > 0)
  order = np.argsort(-score[candidates], kind="stable")[:limit]
  return [int(i) for i in candidates[order]]
