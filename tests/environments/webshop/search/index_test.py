"""The index ranks as Lucene does, by comparison with BM25 in plain loops.

The reference shares no code with the index except the package of Porter's
stemmer. It splits words character by character, rounds lengths by Lucene's rule
for bytes, and adds up in float64.
"""

import itertools
import json
import random
import unittest

import pytest

from environments.webshop.listings.loader import Listings
from environments.webshop.search.index import build_index
from environments.webshop.shop.catalogue import MAX_RESULTS
from tests.environments.shared_data import find
from tests.environments.webshop.search import lucene_reference


class SearchIndexTest(unittest.TestCase):
  def test_ranks_by_the_formula(self):
    rng = random.Random(0)
    words = ["red", "blue", "shirt", "lamp", "table", "soft", "wool", "large"]
    for _ in range(50):
      texts = [
        " ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(12)
      ]
      query = " ".join(rng.choices([*words, "unheard"], k=rng.randint(1, 4)))
      scores = lucene_reference.Index(texts).scores(query)
      ranking = build_index(texts).search(query, limit=12)
      self.assertCountEqual(ranking, scores)
      for better, worse in itertools.pairwise(ranking):
        self.assertGreaterEqual(scores[better] + 1e-6, scores[worse])

  def test_ties_keep_the_order_of_the_texts(self):
    index = build_index(["red shirt", "blue lamp", "red shirt", "red shirt"])
    self.assertEqual(index.search("shirt", limit=9), [0, 2, 3])
    many = build_index(["lamp", "red shirt"] * 100)
    self.assertEqual(many.search("shirt", limit=100), list(range(1, 200, 2)))

  def test_limit(self):
    index = build_index(["lamp"] * 9)
    self.assertEqual(index.search("lamp", limit=4), [0, 1, 2, 3])

  def test_queries_without_match(self):
    index = build_index(["red shirt"])
    for query in ("", "  ", "the of", "lamp", "?!"):
      with self.subTest(query=query):
        self.assertEqual(index.search(query, limit=9), [])

  def test_an_empty_index(self):
    self.assertEqual(build_index([]).search("lamp", limit=9), [])

  def test_word_forms_match(self):
    index = build_index(["running shoes for women's feet"])
    for query in ("run", "shoe", "Woman's", "WOMEN"):
      with self.subTest(query=query):
        self.assertEqual(
          index.search(query, limit=1), [] if query == "Woman's" else [0]
        )


class LongTextsTest(unittest.TestCase):
  def test_lengths_are_rounded_as_in_lucenes_byte(self):
    for length in (5, 41, 56, 57, 100, 1000):
      texts = [f"red {'lamp ' * length}", f"red {'lamp ' * (length + 1)}"]
      scores = lucene_reference.Index(texts).scores("red")
      tied = abs(scores[0] - scores[1]) < 1e-9
      ranking = build_index([*reversed(texts)]).search("red", limit=2)
      with self.subTest(length=length):
        self.assertEqual(ranking, [0, 1] if tied else [1, 0])


class RealShopTest(unittest.TestCase):
  """The thousand real products with the queries that people wrote."""

  def overlap(self, stride):
    path = find("webshop/products_1000.jsonl")
    texts = [
      product.indexed_text for product in Listings(str(path)).catalogue.products
    ]
    queries = json.loads(find("webshop/goal_query_map.json").read_text())
    index, reference = build_index(texts), lucene_reference.Index(texts)
    shares = []
    for query in [q for qs in queries.values() for q in qs][::stride]:
      expected = reference.best(query, limit=10)
      ranking = index.search(query, limit=MAX_RESULTS)[:10]
      if expected:
        shares.append(len(set(ranking) & set(expected)) / len(expected))
    self.assertGreater(len(shares), 2000 // stride)
    return sum(shares) / len(shares)

  @pytest.mark.slow
  def test_top_ten_is_lucenes(self):
    self.assertGreaterEqual(self.overlap(stride=7), 0.999)

  @pytest.mark.full
  def test_top_ten_is_lucenes_for_every_query(self):
    self.assertGreaterEqual(self.overlap(stride=1), 0.999)
