"""The index ranks as Lucene does: BM25 from the paper, written out in loops.

The reference shares no code with the index: it splits words character by
character, rounds lengths by Lucene's rule for bytes and adds up in float64.
Only Porter's stemmer is the same package's.
"""

import json
import random
import unittest

import pytest

from environments.webshop.listings.loader import Listings
from environments.webshop.search.index import index_of
from environments.webshop.shop.catalogue import MAX_RESULTS
from tests.environments.webshop import data
from tests.environments.webshop.search import lucene_reference


class SearchIndexTest(unittest.TestCase):
  def test_ranks_as_the_formula_says(self):
    rng = random.Random(0)
    words = ["red", "blue", "shirt", "lamp", "table", "soft", "wool", "large"]
    for _ in range(50):
      texts = [
        " ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(12)
      ]
      query = " ".join(rng.choices([*words, "unheard"], k=rng.randint(1, 4)))
      scores = lucene_reference.Index(texts).scores(query)
      found = index_of(texts).search(query, limit=12)
      self.assertCountEqual(found, scores)
      for better, worse in zip(found, found[1:], strict=False):
        self.assertGreaterEqual(scores[better] + 1e-6, scores[worse])

  def test_ties_keep_the_order_of_the_texts(self):
    index = index_of(["red shirt", "blue lamp", "red shirt", "red shirt"])
    self.assertEqual(index.search("shirt", limit=9), [0, 2, 3])
    many = index_of(["lamp", "red shirt"] * 100)
    self.assertEqual(many.search("shirt", limit=100), list(range(1, 200, 2)))

  def test_limit(self):
    index = index_of(["lamp"] * 9)
    self.assertEqual(index.search("lamp", limit=4), [0, 1, 2, 3])

  def test_nothing_to_find(self):
    index = index_of(["red shirt"])
    for query in ("", "  ", "the of", "lamp", "?!"):
      with self.subTest(query=query):
        self.assertEqual(index.search(query, limit=9), [])

  def test_an_empty_shop_finds_nothing(self):
    self.assertEqual(index_of([]).search("lamp", limit=9), [])

  def test_word_forms_match(self):
    index = index_of(["running shoes for women's feet"])
    for query in ("run", "shoe", "Woman's", "WOMEN"):
      with self.subTest(query=query):
        self.assertEqual(
          index.search(query, limit=1), [] if query == "Woman's" else [0]
        )


class LongTextsTest(unittest.TestCase):
  def test_lengths_are_rounded_as_in_lucenes_byte(self):
    self.assertEqual(
      [lucene_reference.stored_length(n) for n in (39, 41, 43, 55, 57, 300)],
      [39, 40, 42, 54, 56, 280],
    )
    for length in (5, 41, 56, 57, 100, 1000):
      texts = [f"red {'lamp ' * length}", f"red {'lamp ' * (length + 1)}"]
      scores = lucene_reference.Index(texts).scores("red")
      tied = abs(scores[0] - scores[1]) < 1e-9
      found = index_of([*reversed(texts)]).search("red", limit=2)
      with self.subTest(length=length):
        self.assertEqual(found, [0, 1] if tied else [1, 0])


class RealShopTest(unittest.TestCase):
  """The thousand products, searched with the queries that people wrote."""

  def overlap(self, step):
    path = data.find("webshop/products_1000.jsonl")
    texts = [
      product.indexed_text for product in Listings(str(path)).catalogue.products
    ]
    queries = json.loads(data.find("webshop/goal_query_map.json").read_text())
    index, reference = index_of(texts), lucene_reference.Index(texts)
    shares = []
    for query in [q for qs in queries.values() for q in qs][::step]:
      wanted = reference.best(query, limit=10)
      found = index.search(query, limit=MAX_RESULTS)[:10]
      if wanted:
        shares.append(len(set(found) & set(wanted)) / len(wanted))
    self.assertGreater(len(shares), 2000 // step)
    return sum(shares) / len(shares)

  def test_top_ten_is_lucenes(self):
    self.assertGreaterEqual(self.overlap(step=7), 0.999)

  @pytest.mark.full
  def test_top_ten_is_lucenes_for_every_query(self):
    self.assertGreaterEqual(self.overlap(step=1), 0.999)


if __name__ == "__main__":
  unittest.main()
