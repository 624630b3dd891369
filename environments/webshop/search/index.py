"""Search index of a shop: BM25 over stems, as Lucene computes it.

Upstream queries a Lucene index (k1 0.9, b 0.4). This is the same arithmetic on
numpy arrays, including lengths rounded to a byte, so that equal scores are
equal in both.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from environments.webshop.search.analyzer import stems

K1 = 0.9  # saturation of repeated terms
B = 0.4  # penalty of long texts


@dataclasses.dataclass(frozen=True, eq=False)
class SearchIndex:
  """An immutable index of texts.

  Postings are grouped by term: the entries `starts[t]:starts[t + 1]` of
  `documents` and `weights` belong to term t.
  """

  number_of: Callable[[str], int | None]  # term -> t, or None if unknown
  starts: np.ndarray
  documents: np.ndarray
  weights: np.ndarray
  num_texts: int

  def search(self, query: str, *, limit: int) -> list[int]:
    """Returns positions of texts, best first; ties keep the texts' order."""
    total = np.zeros(self.num_texts)
    for term, count in Counter(stems(query)).items():
      number = self.number_of(term)
      if number is not None:
        postings = slice(self.starts[number], self.starts[number + 1])
        weights = self.weights[postings]
        total[self.documents[postings]] += (
          weights if count == 1 else count * weights
        )
    return _top(total.astype(np.float32), limit)


def build_index(texts: Iterable[str]) -> SearchIndex:
  """Builds an index of texts."""
  terms: dict[str, int] = {}
  numbers, sizes = list[int](), list[int]()
  for text in texts:
    found = stems(text)
    sizes.append(len(found))
    numbers += [terms.setdefault(stem, len(terms)) for stem in found]
  lengths = np.asarray(sizes, dtype=np.int64)
  num_terms = max(1, len(terms))
  pairs = np.repeat(np.arange(len(lengths)), lengths) * num_terms
  pairs, count = np.unique(
    pairs + np.asarray(numbers, dtype=np.int64), return_counts=True
  )
  document, term = np.divmod(pairs, num_terms)
  order = np.argsort(term, kind="stable")
  frequency = np.bincount(term, minlength=len(terms))
  weights = bm25(
    count,
    lengths[document],
    mean_length=float(lengths.mean()) if sizes else 1.0,
    frequency=frequency[term],
    num_texts=len(lengths),
  )
  return SearchIndex(
    terms.get,
    np.concatenate([[0], np.cumsum(frequency)]),
    document[order],
    weights[order],
    num_texts=len(lengths),
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
