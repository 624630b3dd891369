"""Upstream's files are read in its own format."""

import json
import pathlib
import random
import tempfile
import unittest

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from environments.webshop import WebShop
from environments.webshop.listings.loader import UPSTREAM_SPLITS, Listings
from environments.webshop.listings.products import read_listings

ITEM = {
  "asin": "B000000001",
  "name": "Bratex Table Lamp",
  "category": "garden",
  "query": " Lamps ",
  "product_category": "Home › Lighting › Lamps",
  "full_description": "A lamp.",
  "small_description": ["hand painted ", "oak"],
  "pricing": "$1,005.50$25.00",
  "average_rating": 4.5,
  "images": ["https://example.org/a.jpg"],
  "customization_options": {
    "Color": [
      {"value": " Red/Wine ", "image": None, "asin": None},
      {"value": "Blue", "image": "b.jpg", "asin": "B2"},
    ],
    "Style": None,
  },
}
WRITTEN = {
  "asin": "B000000001",
  "instruction": "i need a blue lamp.",
  "instruction_attributes": ["hand painted"],
  "instruction_options": ["blue"],
  "worker_id": "W1",
}


class ItemsTest(unittest.TestCase):
  def setUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def write(self, name, value):
    path = self.folder / name
    path.write_text(json.dumps(value))
    return str(path)

  def read(self, *items, **beside):
    paths = {name: self.write(f"{name}.json", v) for name, v in beside.items()}
    products = self.write("items.json", list(items))
    return [row for _, row in read_listings(products, **paths)]

  def test_an_item_becomes_a_row(self):
    (row,) = self.read(
      ITEM,
      attributes={"B000000001": {"attributes": ["oak"], "instruction": "x"}},
      instructions={"B000000001": [WRITTEN]},
    )
    expected = {
      "Title": "Bratex Table Lamp",
      "Price": "$1005.5 to $25.0",
      "pricing": (1005.5, 25.0),
      "options": {"color": ["red | wine", "blue"]},
      "BulletPoints": ["hand painted ", "oak"],
      "Attributes": ("oak",),
      "Rating": "N.A.",
    }
    self.assertEqual({name: row[name] for name in expected}, expected)
    (instruction,) = row["instructions"]
    self.assertEqual(instruction["instruction_options"], ["blue"])

  def test_missing_values_get_upstreams_defaults(self):
    for pricing in (None, ""):
      (row,) = self.read({**ITEM, "pricing": pricing})
      self.assertEqual((row["Price"], row["pricing"]), ("$100.0", (100.0,)))
    (row,) = self.read(
      {**ITEM, "customization_options": "", "small_description": "soft"}
    )
    self.assertEqual((row["options"], row["BulletPoints"]), ({}, ["soft"]))
    self.assertEqual((row["Attributes"], row["instructions"]), ((), ()))

  def test_items_that_upstream_skips(self):
    others = [{**ITEM, "asin": asin} for asin in ("nan", "B0000000001", "B2")]
    rows = self.read(ITEM, *others, ITEM)
    self.assertEqual([row["asin"] for row in rows], ["B000000001", "B2"])

  def test_a_broken_item_is_named(self):
    with self.assertRaisesRegex(ConfigError, "item 2 is not one of WebShop's"):
      self.read(ITEM, {"asin": "B2", "full_description": ""})

  def test_a_shop_of_items_can_be_played(self):
    shop = WebShop(
      products=self.write("items.json", [ITEM]),
      human_instructions=self.write("written.json", {"B000000001": [WRITTEN]}),
    )
    (split,) = [s for s in ("train", "test") if shop.indices(s)]
    catalogue, goal = shop.find(Task("webshop", split, 0))
    self.assertEqual(catalogue.search("lamps"), (goal.product,))
    self.assertTrue(goal.instruction.startswith("i need a blue lamp, and pri"))
    self.assertEqual(goal.options, ("blue",))

  def test_upstreams_splits_go_by_position(self):
    items = [{**ITEM, "asin": f"B{i}", "pricing": "$5"} for i in range(620)]
    written = {
      f"B{i}": [{**WRITTEN, "instruction": f"goal {i} {k}"} for k in range(2)]
      for i in range(600)
    }
    written["B3"][0] = {**WRITTEN, "instruction_attributes": []}  # skipped
    paths = (self.write("items.json", items), self.write("w.json", written))
    goals = Listings(
      paths[0], instructions=paths[1], upstream_splits=True
    ).goals
    self.assertEqual((len(goals["test"]), len(goals["train"])), (200, 199))
    written = [
      entry["instruction"]
      for entries in written.values()
      for entry in entries
      if entry["instruction_attributes"]
    ]
    random.Random(233).shuffle(written)
    for split, places in UPSTREAM_SPLITS.items():
      for wanted, goal in zip(
        written[places.start : places.stop], goals[split], strict=True
      ):
        self.assertEqual(goal.instruction.split(",")[0], wanted)

  def test_upstreams_splits_need_its_goals(self):
    with self.assertRaisesRegex(ConfigError, "wrote 0 for these products"):
      Listings(self.write("items.json", [ITEM]), upstream_splits=True)
