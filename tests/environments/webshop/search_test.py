"""The index ranks as BM25 written out in loops does."""

import math
import random
import unittest

from environments.webshop.search import K1, B, SearchIndex, stems


def bm25_in_loops(texts, query):
  """Score of every text, straight from the formula."""
  bags = [stems(text) for text in texts]
  mean_length = sum(map(len, bags)) / len(bags)
  scores = []
  for bag in bags:
    score = 0.0
    for term in stems(query):
      frequency = sum(term in other for other in bags)
      idf = math.log(1 + (len(bags) - frequency + 0.5) / (frequency + 0.5))
      count = bag.count(term)
      damped = count + K1 * (1 - B + B * len(bag) / mean_length)
      score += idf * count / damped
    scores.append(score)
  return scores


class SearchIndexTest(unittest.TestCase):
  def test_ranks_as_the_formula_says(self):
    rng = random.Random(0)
    words = ["red", "blue", "shirt", "lamp", "table", "soft", "wool", "large"]
    for _ in range(50):
      texts = [
        " ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(12)
      ]
      query = " ".join(rng.choices([*words, "unheard"], k=rng.randint(1, 4)))
      scores = bm25_in_loops(texts, query)
      found = SearchIndex(texts).search(query, limit=12)
      self.assertCountEqual(found, [i for i, s in enumerate(scores) if s > 0])
      for better, worse in zip(found, found[1:], strict=False):
        self.assertGreaterEqual(scores[better] + 1e-9, scores[worse])

  def test_ties_keep_the_order_of_the_texts(self):
    index = SearchIndex(["red shirt", "blue lamp", "red shirt", "red shirt"])
    self.assertEqual(index.search("shirt", limit=9), [0, 2, 3])
    many = SearchIndex(["lamp", "red shirt"] * 100)
    self.assertEqual(many.search("shirt", limit=100), list(range(1, 200, 2)))

  def test_limit(self):
    index = SearchIndex(["lamp"] * 9)
    self.assertEqual(index.search("lamp", limit=4), [0, 1, 2, 3])

  def test_nothing_to_find(self):
    index = SearchIndex(["red shirt"])
    for query in ("", "  ", "the of", "lamp", "?!"):
      with self.subTest(query=query):
        self.assertEqual(index.search(query, limit=9), [])

  def test_an_empty_shop_finds_nothing(self):
    self.assertEqual(SearchIndex([]).search("lamp", limit=9), [])

  def test_word_forms_match(self):
    index = SearchIndex(["running shoes for women's feet"])
    for query in ("run", "shoe", "Woman's", "WOMEN"):
      with self.subTest(query=query):
        self.assertEqual(
          index.search(query, limit=1), [] if query == "Woman's" else [0]
        )


class StemsTest(unittest.TestCase):
  def test_as_lucenes_english_analyzer(self):
    for text, expected in (
      ("The Shoes of the women", ["shoe", "women"]),
      ("easy-to-clean, quick-drying", ["easi", "clean", "quick", "dry"]),
      ("3.5 ounces", ["3.5", "ounc"]),
      ("the cat's", ["cat"]),
      ("relational", ["relat"]),
      ("possibly technology", ["possibl", "technolog"]),  # Martin's departures
    ):
      with self.subTest(text=text):
        self.assertEqual(stems(text), expected)

  def test_a_word_without_end_is_left_out(self):
    self.assertEqual(stems("x" * 100_000 + " lamp"), ["lamp"])


if __name__ == "__main__":
  unittest.main()
