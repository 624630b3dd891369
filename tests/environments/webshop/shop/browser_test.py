"""The browser shows the right page after each action."""

import unittest

from environments.options import PageStyle
from environments.webshop.shop.browser import Browser
from environments.webshop.shop.catalogue import Catalogue
from tests.environments.webshop.shelf import CATALOGUE, SHIRT, a_product

SEARCH_PAGE = ("WebShop", "Instruction:", "buy", "Search")


def a_browser(catalogue=CATALOGUE, **style):
  return Browser(catalogue, "buy", PageStyle(**style))


def open_item(product=None, **style):
  """Opens a product's page, by default the shirt's."""
  catalogue, product = (
    (Catalogue([product]), product) if product else (CATALOGUE, SHIRT)
  )
  browser = a_browser(catalogue, **style)
  browser.search(product.title)
  browser.click(product.id)
  return browser


def a_crowded_shop(size):
  return Catalogue([a_product(f"b{i}", f"shirt {i}") for i in range(size)])


class ResultsTest(unittest.TestCase):
  def searched(self, size, **style):
    browser = a_browser(a_crowded_shop(size), **style)
    browser.search("shirt")
    return browser

  def ids(self, browser):
    return [
      c for c in browser.page.clickables if c.startswith("b") and " " not in c
    ]

  def test_pages_of_ten_up_to_fifty(self):
    browser = self.searched(120)
    for number in range(1, 7):
      self.assertIn(f"Page {number} (Total results: 50)", browser.page.texts)
      expected = 10 if number < 6 else 0  # pages past the end are empty
      self.assertEqual(len(self.ids(browser)), expected)
      self.assertEqual("< prev" in browser.page.clickables, number > 1)
      browser.click("next >")

  def test_next_and_previous_pages(self):
    browser = self.searched(30)
    seen = [browser.page]
    for _ in range(2):
      browser.click("next >")
      seen.append(browser.page)
    self.assertEqual(len(set(seen)), 3)
    for page in seen[1::-1]:
      browser.click("< prev")
      self.assertEqual(browser.page, page)

  def test_results_per_page(self):
    browser = self.searched(30, results_per_page=4)
    browser.click("next >")
    self.assertEqual(self.ids(browser), ["b4", "b5", "b6", "b7"])

  def test_leaving_an_item_returns_to_its_page_of_results(self):
    browser = self.searched(30)
    browser.click("next >")
    results = browser.page
    browser.click("b12")
    self.assertIn("Price: $20.0", browser.page.texts)
    browser.click("< prev")
    self.assertEqual(browser.page, results)

  def test_a_search_without_results(self):
    browser = a_browser()
    browser.search("spaceship")
    self.assertIn("Page 1 (Total results: 0)", browser.page.texts)

  def test_a_search_works_on_every_page(self):
    browser = a_browser()
    browser.search("shirt")
    browser.click("b1")
    browser.search("lamp")
    self.assertEqual(self.ids(browser), ["b3"])

  def test_an_empty_search_does_nothing(self):
    browser = a_browser()
    browser.search("")
    self.assertEqual(browser.page.texts, SEARCH_PAGE)

  def test_back_to_search_though_its_button_is_hidden(self):
    browser = a_browser(show_navigation=False)
    browser.search("shirt")
    browser.click("back to search")
    self.assertEqual(browser.page.texts, SEARCH_PAGE)
    self.assertTrue(browser.page.has_search_bar)


class ItemTest(unittest.TestCase):
  def setUp(self):
    self.browser = open_item()

  def test_ids_and_options_are_clicked_in_any_case(self):
    self.browser.click("< prev")
    self.browser.click("B1")
    self.browser.click("RED")
    self.assertEqual(self.browser.chosen, {"color": "red"})

  def test_the_last_choice_of_a_group_counts(self):
    for value in ("red", "large", "blue"):
      self.browser.click(value)
    self.assertEqual(self.browser.chosen, {"color": "blue", "size": "large"})

  def test_leaving_the_item_clears_the_choices(self):
    for leave in ("< prev", "back to search"):
      with self.subTest(leave=leave):
        self.setUp()
        self.browser.click("red")
        self.browser.click(leave)
        self.assertEqual(self.browser.chosen, {})

  def test_sub_pages(self):
    for name, body in (
      ("description", ("soft",)),
      ("features", ("wool", "dyed")),
      ("reviews", ()),
    ):
      with self.subTest(name=name):
        item = self.browser.page
        self.browser.click(name)
        self.assertEqual(
          self.browser.page.texts,
          ("Instruction:", "buy", "Back to Search", "< Prev", *body),
        )
        self.browser.click("< prev")
        self.assertEqual(self.browser.page, item)

  def test_the_sub_page_of_attributes(self):
    self.assertNotIn("attributes", self.browser.page.clickables)
    browser = open_item(show_attributes=True)
    texts = browser.page.texts
    self.assertEqual(texts[-3:], ("Reviews", "Attributes", "Buy Now"))
    browser.click("attributes")
    self.assertEqual(
      browser.page.texts[4:],
      ("slim fit", "machine wash", "fashion", "shirt", SHIRT.category),
    )

  def test_sub_pages_keep_the_choices(self):
    self.browser.click("red")
    self.browser.click("features")
    self.browser.click("< prev")
    self.browser.click("buy now")
    self.assertEqual(self.browser.chosen, {"color": "red"})
    self.assertEqual(self.browser.bought, SHIRT)

  def test_a_sub_page_offers_no_purchase(self):
    self.browser.click("features")
    self.browser.click("buy now")
    self.assertIsNone(self.browser.bought)

  def test_a_click_on_a_text_of_another_page_does_nothing(self):
    item = self.browser.page
    for value in ("", "next >", "b2", "green", "search", "attributes"):
      with self.subTest(value=value):
        self.browser.click(value)
        self.assertEqual(self.browser.page, item)

  def test_nothing_can_be_clicked_after_the_purchase(self):
    self.browser.click("buy now")
    self.browser.click("red")
    self.assertEqual(self.browser.chosen, {})

  def test_a_value_of_two_groups_goes_to_the_later_one(self):
    double = a_product("b7", "band", options={"top": ("red",), "end": ("red",)})
    browser = open_item(double)
    browser.click("red")
    self.assertEqual(browser.chosen, {"end": "red"})

  def test_empty_texts_are_left_out(self):
    bare = a_product("b7", "band", features=(), description="", options={})
    browser = open_item(bare)
    browser.click("description")
    self.assertEqual(browser.page.texts[-1], "< Prev")

  def test_a_short_confirmation_replaces_the_item_page(self):
    browser = open_item(repeat_item=False)
    browser.click("red")
    self.assertEqual(browser.page.texts, ("color: red", "Buy Now"))
    browser.click("large")
    browser.click("buy now")
    self.assertEqual(browser.chosen, {"color": "red", "size": "large"})
