"""Shops are loaded from files: of one product, or the thousand real ones."""

import json
import math
import pathlib
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.environment import WebShop
from environments.webshop.listings.loader import Listings
from tests.environments.shared_data import find
from tests.environments.webshop.expert_test import play

ROW = {
  "asin": "B000000001",
  "query": " Lamps ",
  "category": "garden",
  "product_category": "Home › Lighting › Lamps",
  "Title": "Bratex Table Lamp",
  "Description": "",
  "BulletPoints": ["hand painted "],
  "pricing": [5.0, 25.0],
  "Price": "$5.0 to $25.0",
  "Rating": "N.A.",
  "options": {"color": ["red", "blue"]},
  "Attributes": ["hand painted"],
}
WRITTEN = {
  "instruction": "i need a red lamp.",
  "instruction_attributes": ["hand painted"],
  "instruction_options": ["red"],
}


class ListingsTest(unittest.TestCase):
  def load(self, *rows):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "products.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return Listings(str(path))

  def goals(self, *rows):
    listings = self.load(*rows)
    return [goal for split in SPLITS for goal in listings.goals[split]]

  def test_reads_a_row(self):
    (product,) = self.load(ROW).catalogue.products
    self.assertEqual(product.query, "lamps")
    self.assertEqual(product.price_tag, "$5.0 to $25.0")
    self.assertTrue(5.0 <= product.price <= 25.0)
    self.assertEqual(product.options, {"color": ("red", "blue")})
    self.assertEqual(self.load(ROW).catalogue.products, (product,))

  def test_prices(self):
    for pricing, expected in (([12.5], 12.5), ([], 100.0)):
      (product,) = self.load(ROW | {"pricing": pricing}).catalogue.products
      self.assertEqual(product.price, expected)

  def test_written_goals_replace_synthetic_ones(self):
    (goal,) = self.goals(ROW | {"instructions": [WRITTEN]})
    self.assertRegex(
      goal.instruction, r"^i need a red lamp, and price lower than \d+\.00 d"
    )
    self.assertEqual(goal.options, ("red",))

  def test_a_synthetic_goal(self):
    (goal,) = self.goals(ROW)
    self.assertIn("hand painted", goal.instruction)
    self.assertIn(" with color: ", goal.instruction)

  def test_a_product_without_attributes_has_no_goal(self):
    self.assertEqual(self.goals(ROW | {"Attributes": []}), [])
    useless = WRITTEN | {"instruction_attributes": []}
    (goal,) = self.goals(ROW | {"instructions": [useless]})
    self.assertNotIn("red lamp.", goal.instruction)

  def test_no_price_limit_above_all_tens(self):
    (goal,) = self.goals(ROW | {"pricing": [2000.0]})
    self.assertEqual(goal.price_upper, math.inf)
    self.assertNotIn("price lower", goal.instruction)

  def test_a_missing_file_is_named(self):
    with self.assertRaisesRegex(ConfigError, "nowhere.jsonl"):
      WebShop(products="nowhere.jsonl")

  def test_a_broken_line_is_named(self):
    row = {key: value for key, value in ROW.items() if key != "Title"}
    with self.assertRaisesRegex(ConfigError, r"products.jsonl:2.*Title"):
      self.load(ROW, row)
    for line in ("{", "7"):
      with self.assertRaisesRegex(ConfigError, r"products.jsonl:2 .*JSON"):
        self.load(ROW, line)


class RealListingsTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_the_expert_solves_every_task_of_the_real_shop(self):
    environment = WebShop(products=str(find("webshop/products_1000.jsonl")))
    num_tasks = 0
    for split in SPLITS:
      for index in environment.indices(split):
        task = Task("webshop", split, index)
        _, goal = environment.find(task)
        self.assertEqual(split_of(goal.instruction), split)
        step, actions = await play(environment, task)
        self.assertEqual(step.reward, 1.0, (goal, actions))
        num_tasks += 1
    self.assertEqual(num_tasks, 815)  # of 1,000, those with attributes

  def test_some_goals_are_written(self):
    listings = Listings(str(find("webshop/products_1000.jsonl")))
    starts = [g.instruction for s in SPLITS for g in listings.goals[s]]
    self.assertTrue(
      any(s.startswith("i need a 120 ml hair mask treatment, ") for s in starts)
    )
