"""No entry of the word tables matches another by the reward's comparison."""

import itertools
import unittest

from environments.webshop.generation import words
from environments.webshop.search.analyzer import stems
from environments.webshop.shop.reward import matches, reduce_to_colour


class WordsTest(unittest.TestCase):
  def test_attributes_of_a_kind_do_not_match_each_other(self):
    for kind in words.KINDS:
      for first, second in itertools.permutations(kind.attributes, 2):
        self.assertFalse(matches(first, second), (first, second))
        self.assertNotIn(first, second)

  def test_brand_and_kind_contain_no_attribute(self):
    for kind, brand in itertools.product(words.KINDS, words.BRANDS):
      for attribute in kind.attributes:
        self.assertNotIn(attribute, f"{brand} {kind.query}")

  def test_option_values_of_a_kind_do_not_match_each_other(self):
    for kind in words.KINDS:
      values = [
        reduce_to_colour(value)
        for group in kind.groups
        for value in words.OPTION_VALUES[group]
      ]
      for first, second in itertools.permutations(values, 2):
        self.assertFalse(matches(first, second), (kind.query, first, second))

  def test_no_word_of_a_paraphrase_matches_a_listing(self):
    listed = [
      *(a for kind in words.KINDS for a in kind.attributes),
      *(kind.query for kind in words.KINDS),
      *words.OPTION_VALUES,
      *(value for values in words.OPTION_VALUES.values() for value in values),
      *words.BRANDS,
      "sold out",
    ]
    terms = {term for text in listed for term in stems(text)}
    for attribute, clauses in words.PARAPHRASES.items():
      for clause in clauses:
        self.assertFalse(terms & set(stems(clause)), (attribute, clause))
        self.assertNotRegex(clause, "[,:]")  # these end an option's value
