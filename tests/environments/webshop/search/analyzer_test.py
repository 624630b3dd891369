"""Terms equal those of Lucene's EnglishAnalyzer (8.7), which were recorded."""

import unittest

from environments.webshop.search.analyzer import MAX_WORD, stems


class StemsTest(unittest.TestCase):
  def test_as_lucenes_english_analyzer(self):
    for text, expected in (
      ("The Shoes of the women", ["shoe", "women"]),
      ("easy-to-clean, quick-drying", ["easi", "clean", "quick", "dry"]),
      ("3.5 ounces, 1,000 ml", ["3.5", "ounc", "1,000", "ml"]),
      ("the cat's, men\u2019s", ["cat", "men"]),
      ("relational", ["relat"]),
      ("possibly technology", ["possibl", "technolog"]),  # Porter's extensions
      ("1.please use.5 u.s.a.", ["1", "pleas", "us", "5", "u.s.a"]),
      ("wash:hand 3:4", ["wash:hand", "3", "4"]),
      ("snake_case ___ _a", ["snake_cas", "_a"]),
      ("5km\u00b2 \u00bd cup", ["5km", "cup"]),
      ("caf\u00e9 cafe\u0301s", ["caf\u00e9", "cafe\u0301"]),
      (
        "\u2714soft \u2b50\u2b50 brand\u2122",
        ["\u2714", "soft"] + ["\u2b50"] * 2 + ["brand", "\u2122"],
      ),
      ("\U0001f468\u200d\U0001f4bc", ["\U0001f468\u200d\U0001f4bc"]),
      (
        "\u4e2d\u6587 \u304b\u306a \u30ab\u30bf",
        ["\u4e2d", "\u6587"] + ["\u304b", "\u306a", "\u30ab\u30bf"],
      ),
      (
        "\ud55c\uad6d\uc5b4 \u0440\u0443\u0441",
        ["\ud55c\uad6d\uc5b4"] + ["\u0440\u0443\u0441"],
      ),
    ):
      with self.subTest(text=text):
        self.assertEqual(stems(text), expected)

  def test_a_long_word_is_split(self):
    terms = stems("x" * (2 * MAX_WORD + 5) + " lamp")
    self.assertEqual([len(term) for term in terms], [MAX_WORD, MAX_WORD, 5, 4])
