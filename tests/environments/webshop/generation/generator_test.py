"""Generated shops: pure, apart from each other's split, and worth searching."""

import unittest

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.generation.difficulty import (
  DIFFICULTIES,
  find_difficulty,
)
from environments.webshop.generation.generator import Generator
from environments.webshop.generation.goals import wish_of
from environments.webshop.shop.reward import judge

NUM_SHOPS = 60  # per split
TASKS = 8


def a_generator(**changes):
  settings = {
    "catalogue_size": 100,
    "tasks_per_catalogue": TASKS,
    "num_cached": 4,
    "difficulty": DIFFICULTIES["easy"],
  }
  return Generator(**settings | changes)


class SplitCase:
  """Over 960 tasks: nothing of one split is ever seen in the other."""

  difficulty: str

  @classmethod
  def setUpClass(cls):
    generator = a_generator(difficulty=DIFFICULTIES[cls.difficulty])
    cls.shops = {
      split: [generator.shop(split, number) for number in range(NUM_SHOPS)]
      for split in SPLITS
    }

  def assert_apart(self, texts_of):
    train, test = (
      {text for shop in self.shops[split] for text in texts_of(shop)}
      for split in SPLITS
    )
    self.assertGreaterEqual(min(len(train), len(test)), NUM_SHOPS)
    self.assertEqual(train & test, set())

  def assert_owned(self, texts_of):
    """Apart by construction: it is the text that decides, not luck."""
    for split in SPLITS:
      texts = {text for shop in self.shops[split] for text in texts_of(shop)}
      self.assertEqual({split_of(text) for text in texts}, {split})

  def test_catalogues(self):
    self.assert_apart(lambda shop: [shop.catalogue.canonical_text])

  def test_listings_instructions_and_wishes(self):
    for name, texts_of in (
      ("listing", lambda s: [p.canonical_text for p in s.catalogue.products]),
      ("instruction", lambda shop: [g.instruction for g in shop.goals]),
      ("wish, however worded", lambda s: [wish_of(g) for g in s.goals]),
    ):
      with self.subTest(name):
        self.assert_apart(texts_of)
        self.assert_owned(texts_of)

  def test_wishes_of_a_shop_differ(self):
    for split in SPLITS:
      for shop in self.shops[split]:
        self.assertEqual(len({wish_of(g) for g in shop.goals}), TASKS)

  def test_every_wish_is_fulfilled_by_its_product(self):
    for shop in self.shops["train"]:
      for goal in shop.goals:
        self.assertIn(goal.product, shop.catalogue.products)
        self.assertEqual(judge(goal.product, goal.options, goal).reward, 1.0)


class EasyShopsTest(SplitCase, unittest.TestCase):
  difficulty = "easy"

  def test_few_products_will_do(self):
    """Of the other products of a kind, most are worth less than 1."""
    others = [
      judge(product, goal.options, goal).reward < 1
      for shop in self.shops["train"]
      for goal in shop.goals
      for product in shop.catalogue.products
      if product.query == goal.product.query and product != goal.product
    ]
    self.assertGreater(sum(others) / len(others), 0.75)

  def test_a_good_search_beats_a_lazy_one(self):
    """Kind and attributes put the right product among the first ten."""
    num_good = num_lazy = num_goals = 0
    for shop in self.shops["test"]:
      for goal in shop.goals:
        query = goal.product.query
        good = shop.catalogue.search(f"{' '.join(goal.attributes)} {query}")
        lazy = shop.catalogue.search(query)
        num_goals += 1
        num_good += goal.product in good[:10]
        num_lazy += lazy[0] == goal.product
    self.assertGreater(num_good / num_goals, 0.95)
    self.assertLess(num_lazy / num_goals, 0.25)


class HardShopsTest(SplitCase, unittest.TestCase):
  difficulty = "hard"

  def verdicts(self, goal, products):
    """What each product of the kind is worth at best, in its four parts."""
    for product in products:
      if product.query == goal.product.query and product != goal.product:
        offered = {v for values in product.options.values() for v in values}
        chosen = [v for v in goal.options if v in offered]
        yield product, judge(product, chosen, goal)

  def test_no_other_product_will_do(self):
    for shop in self.shops["train"]:
      for goal in shop.goals:
        for _, verdict in self.verdicts(goal, shop.catalogue.products):
          self.assertLess(verdict.reward, 1)

  def test_siblings_miss_by_one_thing_each(self):
    """Three by an option, three by an attribute, three by the price."""
    shop = self.shops["test"][0]
    for goal in shop.goals:
      missed = {"options": 0, "attributes": 0, "prices": 0}
      for _, v in self.verdicts(goal, shop.catalogue.products):
        flaws = (v.r_option < 1, v.r_att < 1, v.r_price < 1)
        if sum(flaws) == 1:
          missed[list(missed)[flaws.index(True)]] += 1
      for flaw, count in missed.items():
        self.assertGreaterEqual(count, 3, (goal, flaw))

  def test_the_customers_words_do_not_find_it(self):
    """Searching the instruction puts it first less often than one in five."""
    goals = [(s, g) for s in self.shops["test"] for g in s.goals]
    first = [
      shop.catalogue.search(goal.instruction)[0] == goal.product
      for shop, goal in goals
    ]
    self.assertLess(sum(first) / len(first), 0.2)

  def test_the_right_words_find_its_family(self):
    for shop in self.shops["test"][:40]:
      for goal in shop.goals:
        query = f"{' '.join(goal.attributes)} {goal.product.query}"
        self.assertIn(goal.product, shop.catalogue.search(query))


class GeneratorTest(unittest.TestCase):
  def test_a_task_is_a_function_of_split_and_index(self):
    first, second = a_generator(), a_generator(num_cached=1)
    tasks = [("train", 17), ("test", 17), ("train", 3), ("train", 17)]
    for split, index in tasks:
      catalogue, goal = first.find(split, index)
      again, same_goal = second.find(split, index)
      self.assertEqual(goal, same_goal)
      self.assertEqual(catalogue.products, again.products)
    self.assertNotEqual(first.find("train", 0)[1], first.find("test", 0)[1])

  def test_neighbours_share_a_catalogue(self):
    generator = a_generator()
    catalogues = [generator.find("train", i)[0] for i in range(2 * TASKS)]
    self.assertEqual(len({id(c) for c in catalogues[:TASKS]}), 1)
    self.assertIsNot(catalogues[0], catalogues[TASKS])

  def test_only_so_many_shops_are_kept(self):
    generator = a_generator(num_cached=2)
    first = generator.find("train", 0)[0]
    for number in range(1, 4):
      generator.find("train", number * TASKS)
    self.assertIsNot(generator.find("train", 0)[0], first)

  def test_catalogues_of_any_size(self):
    for size in (10, 11, 99, 600):
      with self.subTest(size=size):
        catalogue, _ = a_generator(catalogue_size=size).find("train", 0)
        self.assertEqual(len(catalogue.products), size)

  def test_ids_are_short_and_lower_case(self):
    catalogue, _ = a_generator().find("train", 0)
    for product in catalogue.products:
      self.assertRegex(product.id, r"^b\d{3}$")

  def test_shops_have_room_for_the_siblings(self):
    for size in (45, 100_000):
      with self.assertRaisesRegex(ConfigError, "must be from 80 to 2080"):
        a_generator(catalogue_size=size, difficulty=DIFFICULTIES["hard"])

  def test_hard_shops_of_any_size(self):
    for size in (80, 101, 600):
      with self.subTest(size=size):
        generator = a_generator(
          catalogue_size=size, difficulty=DIFFICULTIES["hard"]
        )
        catalogue, _ = generator.find("train", 0)
        self.assertEqual(len(catalogue.products), size)

  def test_levels_are_named(self):
    self.assertIs(find_difficulty("hard"), DIFFICULTIES["hard"])
    with self.assertRaisesRegex(ConfigError, "easy, siblings, prices"):
      find_difficulty("harder")

  def test_too_many_tasks_for_a_shop_is_an_error(self):
    generator = a_generator(catalogue_size=1, tasks_per_catalogue=10_000)
    with self.assertRaisesRegex(ConfigError, "tasks_per_catalogue"):
      generator.find("train", 0)


if __name__ == "__main__":
  unittest.main()
