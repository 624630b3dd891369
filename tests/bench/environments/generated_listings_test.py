"""Files of generated listings are deterministic and readable."""

import pathlib
import tempfile
import unittest

from bench.environments import generated_listings
from environments.webshop.listings.products import product_of
from environments.webshop.listings.rows import read_rows


class GeneratedFileTest(unittest.TestCase):
  def write(self, name, **arguments):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / name
    generated_listings.write(path, **arguments)
    return path

  def test_forms_hold_the_same_products(self):
    drawn = list(generated_listings.draw(1200, 3, 0))
    self.assertEqual(len({product.id for product in drawn}), 1200)
    forms = {"a.jsonl": "lines", "a.json": "array", "a.jsonl.gz": "lines"}
    for name, form in forms.items():
      path = self.write(name, num_products=1200, num_words=3, form=form)
      self.assertEqual([product_of(row) for _, row in read_rows(path)], drawn)

  def test_content_is_a_function_of_the_arguments(self):
    first, again, other, longer = (
      self.write("a", num_products=5, num_words=n, seed=seed).read_text()
      for n, seed in ((9, 0), (9, 0), (9, 1), (99, 0))
    )
    self.assertEqual(again, first)
    self.assertNotEqual(other, first)
    self.assertGreater(len(longer), len(first) + 5 * 90 * 3)

  def test_words_have_different_frequencies(self):
    words = " ".join(
      product.description for product in generated_listings.draw(200, 100, 0)
    ).split()
    num_distinct = len(set(words))
    self.assertTrue(2000 < num_distinct < len(words) / 2, num_distinct)
