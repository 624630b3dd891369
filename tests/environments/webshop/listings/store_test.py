"""A shop on disk equals the shop in memory, and needs little memory."""

import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from bench.environments import generated_listings
from environments.webshop import WebShop
from environments.webshop.listings import loader
from environments.webshop.listings.loader import Listings
from environments.webshop.listings.store import StoredCatalogue
from environments.webshop.search import disk_index
from tests.environments.shared_data import find


def make_folder(case):
  return pathlib.Path(case.enterContext(tempfile.TemporaryDirectory()))


def on_disk(case, path, **options):
  """Loads a file as if it were large."""
  case.enterContext(mock.patch.object(loader, "IN_MEMORY_BYTES", 0))
  listings = Listings(str(path), **options)
  case.assertIsInstance(listings.catalogue, StoredCatalogue)
  return listings


class StoreTest(unittest.TestCase):
  def assert_same(self, stored, in_memory, queries):
    self.assertEqual(
      list(stored.catalogue.products), list(in_memory.catalogue.products)
    )
    for split in SPLITS:
      self.assertEqual(list(stored.goals[split]), list(in_memory.goals[split]))
    for query in queries:
      self.assertEqual(
        stored.catalogue.search(query), in_memory.catalogue.search(query), query
      )
    product = in_memory.catalogue.products[3]
    for name in (product.id.lower(), product.id.upper()):
      self.assertEqual(stored.catalogue.find(name), product)
    for name in ("", "nothing", "zzzzzzzzzzzzzzzzz", "\u00e9"):
      self.assertIsNone(stored.catalogue.find(name))

  def test_a_generated_file_in_chunks_of_any_size(self):
    folder = make_folder(self)
    path = folder / "products.json.gz"
    generated_listings.write(path, num_products=60, num_words=9, form="array")
    in_memory = Listings(str(path))
    queries = [p.title for p in in_memory.catalogue.products]
    for chunk in (1, 50, 1 << 22):
      self.enterContext(mock.patch.object(disk_index, "CHUNK", chunk))
      stored = on_disk(self, path, cache=str(folder / f"cache{chunk}"))
      self.assert_same(stored, in_memory, [*queries, "", "nothing of that"])

  @pytest.mark.slow
  def test_the_real_thousand(self):
    path = find("webshop/products_1000.jsonl")
    in_memory = Listings(str(path))
    rng = random.Random(0)
    some = rng.sample(in_memory.catalogue.products, 50)
    queries = [product.title for product in some]
    stored = on_disk(self, path, cache=str(make_folder(self)))
    self.assert_same(stored, in_memory, queries)

  def make_file(self):
    """Writes a small file of listings."""
    path = make_folder(self) / "products.jsonl"
    generated_listings.write(path, num_products=9, num_words=5)
    return path

  def test_a_store_is_built_once_per_content(self):
    path = self.make_file()
    cache = path.with_name("cache")
    on_disk(self, path, cache=str(cache))
    (store,) = cache.iterdir()
    with mock.patch("environments.webshop.listings.store._build") as build:
      on_disk(self, path, cache=str(cache))
    build.assert_not_called()
    generated_listings.write(path, num_products=9, num_words=5, seed=1)
    on_disk(self, path, cache=str(cache))
    self.assertEqual(len(list(cache.iterdir())), 2)
    self.assertTrue(store.is_dir())

  def test_a_broken_file_leaves_no_store(self):
    path = self.make_file()
    cache = path.with_name("cache")
    lines = path.read_text().splitlines()
    for text, message in (
      (lines[0] + "\n{}\n", r":2 has no 'asin'"),
      (lines[0] + "\n" + lines[0] + "\n", "'b000000000'"),
    ):
      path.write_text(text)
      with self.assertRaisesRegex(ConfigError, message):
        on_disk(self, path, cache=str(cache))
      self.assertEqual(list(cache.iterdir()), [])

  def test_a_cache_that_cannot_be_written_is_refused(self):
    path = self.make_file()
    with self.assertRaisesRegex(ConfigError, "cache='.*products.jsonl'"):
      on_disk(self, path, cache=str(path))

  @pytest.mark.full
  def test_memory_does_not_grow_with_the_file(self):
    folder = make_folder(self)
    path = folder / "products.jsonl"
    generated_listings.write(path, num_products=14_000, num_words=150)
    self.assertGreater(path.stat().st_size, loader.IN_MEMORY_BYTES)
    opening = (
      "import sys, resource\n"
      "from environments.webshop.listings.loader import Listings\n"
      "before = open('/proc/self/statm').read().split()\n"
      "made = Listings(sys.argv[1], cache=sys.argv[2])\n"
      "found = made.catalogue.search('heavy duty')\n"
      "after = open('/proc/self/statm').read().split()\n"
      "own = [int(w[1]) - int(w[2]) for w in (before, after)]\n"
      "print((own[1] - own[0]) * resource.getpagesize(), len(found))"
    )
    words = [sys.executable, "-c", opening, str(path), str(folder / "cache")]
    for _ in range(2):  # builds, then opens
      done = subprocess.run(words, capture_output=True, text=True, check=True)
    own_bytes, num_found = map(int, done.stdout.split())
    self.assertEqual(num_found, 50)
    self.assertLess(own_bytes, path.stat().st_size / 2)


class ShopOnDiskTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    generated_listings.write(
      cls.folder / "products.jsonl", num_products=2000, num_words=0
    )

  def make_environment(self):
    self.enterContext(mock.patch.object(loader, "IN_MEMORY_BYTES", 0))
    return WebShop(
      products=str(self.folder / "products.jsonl"),
      cache=str(self.folder / "cache"),
    )

  def test_the_product_of_a_goal_is_in_the_catalogue(self):
    shop = self.make_environment()
    catalogue, goal = shop.find(Task("webshop", "train", 0))
    self.assertIn(goal.product, catalogue.products)
