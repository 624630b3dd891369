"""Generated shops are deterministic, of one split, and as hard as asked."""

import unittest

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from environments.options import WebShopOptions
from environments.webshop.generation.generator import ShopGenerator
from environments.webshop.generation.goals import canonical_goal
from environments.webshop.shop.reward import score_purchase

NUM_SHOPS = 24  # per split
TASKS = 8


def a_generator(**changes):
  settings = {
    "catalogue_size": 100,
    "tasks_per_catalogue": TASKS,
    "num_cached": 4,
    "difficulty": "easy",
  }
  return ShopGenerator(WebShopOptions(**settings | changes))


class SplitCase:
  """Splits share no shop, listing, instruction or goal."""

  difficulty: str

  @classmethod
  def setUpClass(cls):
    generator = a_generator(difficulty=cls.difficulty)
    cls.shops = {
      split: [generator.shop(split, number) for number in range(NUM_SHOPS)]
      for split in SPLITS
    }

  def texts(self, split, texts_of):
    return {text for shop in self.shops[split] for text in texts_of(shop)}

  def assert_disjoint(self, texts_of):
    train, test = (self.texts(split, texts_of) for split in SPLITS)
    self.assertGreaterEqual(min(len(train), len(test)), NUM_SHOPS)
    self.assertEqual(train & test, set())

  def test_splits_share_no_listing_instruction_or_goal(self):
    for name, texts_of in (
      ("listing", lambda s: [p.canonical_text for p in s.catalogue.products]),
      ("instruction", lambda shop: [g.instruction for g in shop.goals]),
      ("goal", lambda shop: [canonical_goal(g) for g in shop.goals]),
    ):
      with self.subTest(name):
        self.assert_disjoint(texts_of)
        for split in SPLITS:  # disjoint by construction, not by chance
          owners = {split_of(text) for text in self.texts(split, texts_of)}
          self.assertEqual(owners, {split})

  def test_goals_of_a_shop_differ(self):
    for split in SPLITS:
      for shop in self.shops[split]:
        self.assertEqual(len({canonical_goal(g) for g in shop.goals}), TASKS)

  def test_every_goal_is_satisfied_by_its_product(self):
    for shop in self.shops["train"]:
      for goal in shop.goals:
        self.assertIn(goal.product, shop.catalogue.products)
        self.assertEqual(
          score_purchase(goal.product, goal.options, goal).reward, 1.0
        )


class EasyShopsTest(SplitCase, unittest.TestCase):
  difficulty = "easy"

  def test_few_products_satisfy_a_goal(self):
    """Most other products of the kind have a reward below 1."""
    is_worse = [
      score_purchase(product, goal.options, goal).reward < 1
      for shop in self.shops["train"]
      for goal in shop.goals
      for product in shop.catalogue.products
      if product.query == goal.product.query and product != goal.product
    ]
    self.assertGreater(sum(is_worse) / len(is_worse), 0.75)


class HardShopsTest(SplitCase, unittest.TestCase):
  difficulty = "hard"

  def best_scores(self, goal, products):
    """Yields the other products of the kind with their best scores."""
    for product in products:
      if product.query == goal.product.query and product != goal.product:
        offered = {v for values in product.options.values() for v in values}
        chosen = [v for v in goal.options if v in offered]
        yield product, score_purchase(product, chosen, goal)

  def test_no_other_product_satisfies_a_goal(self):
    for shop in self.shops["train"]:
      for goal in shop.goals:
        for _, score in self.best_scores(goal, shop.catalogue.products):
          self.assertLess(score.reward, 1)

  def test_siblings_fail_in_one_respect_each(self):
    """Three fail by an option, three by an attribute, three by the price."""
    shop = self.shops["test"][0]
    for goal in shop.goals:
      failed = {"options": 0, "attributes": 0, "prices": 0}
      for _, v in self.best_scores(goal, shop.catalogue.products):
        flaws = (v.r_option < 1, v.r_att < 1, v.r_price < 1)
        if sum(flaws) == 1:
          failed[list(failed)[flaws.index(True)]] += 1
      for flaw, count in failed.items():
        self.assertGreaterEqual(count, 3, (goal, flaw))

  def test_searching_kind_and_attributes_finds_the_product(self):
    for shop in self.shops["test"][:40]:
      for goal in shop.goals:
        query = f"{' '.join(goal.attributes)} {goal.product.query}"
        self.assertIn(goal.product, shop.catalogue.search(query))


class GeneratorTest(unittest.TestCase):
  def test_the_cache_of_shops_is_bounded(self):
    generator = a_generator(num_cached=2)
    first = generator.find("train", 0)[0]
    for number in range(1, 4):
      generator.find("train", number * TASKS)
    self.assertIsNot(generator.find("train", 0)[0], first)

  def test_too_small_or_large_catalogues_are_refused(self):
    for size in (45, 100_000):
      with self.assertRaisesRegex(ConfigError, "must be from 80 to 2080"):
        a_generator(catalogue_size=size, difficulty="hard")

  def test_too_many_tasks_for_a_shop_is_an_error(self):
    generator = a_generator(catalogue_size=1, tasks_per_catalogue=10_000)
    with self.assertRaisesRegex(ConfigError, "tasks_per_catalogue"):
      generator.find("train", 0)
