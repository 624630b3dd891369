"""The shop's search engine: BM25 over stems, as Lucene's EnglishAnalyzer has.

Upstream asks a Lucene index (k1 0.9, b 0.4). This is the same formula on numpy
arrays, small enough to build one index per catalogue; it ranks and does
nothing else.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]

K1 = 0.9  # how soon a repeated term stops to count
B = 0.4  # how much a long text is held against a document
_STOP_WORDS = """
  a an and are as at be but by for if in into is it no not of on or such that
  the their then there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_MAX_WORD = 255  # letters; Lucene cuts longer ones, and nothing matches those
_WORD = re.compile(r"\w+(?:['’.]\w+)*")
_STEMMER = PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)


def stems(text: str) -> list[str]:
  """The terms of `text`, in order: lower case, no stop words, no endings."""
  words = (w.removesuffix("'s") for w in _WORD.findall(text.lower()))
  return [
    _stem(word)
    for word in words
    if word not in STOP_WORDS and len(word) <= _MAX_WORD
  ]


@functools.lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
  return str(_STEMMER.stem(word, to_lowercase=False))


class SearchIndex:
  """An immutable index of texts.

  Postings lie side by side, grouped by term: term t owns the entries
  `_starts[t]:_starts[t + 1]` of `_documents` and `_weights`.
  """

  def __init__(self, texts: Sequence[str]):
    self._num_texts = len(texts)
    self._terms: dict[str, int] = {}
    term, document, count, length = [], [], [], []
    for position, text in enumerate(texts):
      counts = Counter(stems(text))
      length.append(counts.total())
      for word, times in counts.items():
        term.append(self._terms.setdefault(word, len(self._terms)))
        document.append(position)
        count.append(times)
    order = np.argsort(np.asarray(term, dtype=np.int64), kind="stable")
    frequency = np.bincount(term, minlength=len(self._terms))
    self._starts = np.concatenate([[0], np.cumsum(frequency)])
    self._documents = np.asarray(document, dtype=np.int64)[order]
    self._weights = _bm25(
      np.asarray(count, dtype=np.float64),
      np.asarray(length, dtype=np.float64)[document],
      mean_length=float(np.mean(length)) if length else 1.0,
      frequency=frequency[term],
      num_texts=len(texts),
    )[order]

  def search(self, query: str, *, limit: int) -> list[int]:
    """Positions of the best texts, best first; ties keep the texts' order."""
    score = np.zeros(self._num_texts)
    for word in stems(query):  # a word said twice counts twice
      term = self._terms.get(word)
      if term is not None:
        own = slice(self._starts[term], self._starts[term + 1])
        score[self._documents[own]] += self._weights[own]
    best = np.argsort(-score, kind="stable")[:limit]
    return [int(i) for i in best if score[i] > 0]


def _bm25(
  count: np.ndarray,
  length: np.ndarray,
  *,
  mean_length: float,
  frequency: np.ndarray,
  num_texts: int,
) -> np.ndarray:
  """idf c / (c + k1 (1 - b + b l / mean l)), per pair of term and text.

  With idf = ln(1 + (N - f + 0.5) / (f + 0.5)), which is never negative
  (Robertson and Zaragoza 2009, in Lucene's variant, without a factor k1 + 1).
  """
  idf = np.log1p((num_texts - frequency + 0.5) / (frequency + 0.5))
  share = count / (count + K1 * (1 - B + B * length / mean_length))
  return np.asarray(idf * share)
