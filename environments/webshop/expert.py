"""Expert of WebShop, which knows the goal and makes mistakes on request.

The expert decides by the content of pages, so that a policy can learn from it.
It searches for kind and attributes, clicks the first result that looks right,
goes back if a wanted option is missing, chooses the options and buys. A mistake
is drawn once per episode, so demonstrations contain right episodes too.
"""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import draw_mistakes
from environments.options import WebShopOptions
from environments.webshop import prompts
from environments.webshop.shop import pages
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product
from environments.webshop.shop.reward import score_purchase

MISTAKES = WebShopOptions.mistakes


class Shopper(Expert):
  """Pursues one goal in one catalogue."""

  def __init__(
    self,
    catalogue: Catalogue,
    goal: Goal,
    *,
    separator: str,
    names_options: bool,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    self._rng = random.Random(f"{seed}/{goal.instruction}")
    self._mistakes = set(
      draw_mistakes(mistakes, MISTAKES, self._rng, where="WebShop's expert")
    )
    self._catalogue = catalogue
    self._goal = goal
    self._separator = separator  # between the texts of a page
    self._names_options = names_options  # in the search, not only by clicks
    self._queries = self._plan_queries()
    self._seen: set[str] = set()  # ids of clicked products
    self._item_clicks: list[str] = []  # remaining clicks on an item page

  def answer(self, messages: Sequence[Message]) -> Message:
    """Makes the next call from the page in the last message."""
    page, _, _ = messages[-1].content.partition("\n\nAvailable Actions:")
    texts = page.split(self._separator)
    if pages.BUY in texts:
      return self._click(self._item_clicks.pop(0))
    if any("(Total results: " in text for text in texts):
      return self._read_results(texts)
    return self._search()

  def _plan_queries(self) -> list[str]:
    """Returns the queries in order, until one finds the product."""
    product = self._goal.product
    if "lazy_search" in self._mistakes:
      return [product.query, product.title]
    options = self._goal.options if self._names_options else ()
    described = " ".join((*self._goal.attributes, product.query, *options))
    return [described, product.title]

  def _read_results(self, texts: Sequence[str]) -> Message:
    """Clicks a product of the results, or goes to the next page."""
    listed = [p for text in texts if (p := self._catalogue.find(text))]
    choice = self._choose_product(listed)
    if choice is not None:
      self._item_clicks = self._plan_item(choice)
      self._seen.add(choice.id)
      return self._click(choice.id)
    return self._click(pages.NEXT) if listed else self._search()

  def _choose_product(self, listed: Sequence[Product]) -> Product | None:
    """Returns the product to click, or None for the next page."""
    if "first_result" in self._mistakes and listed:
      return listed[0]
    unseen = (p for p in listed if p.id not in self._seen)
    choice = next((p for p in unseen if self._looks_right(p)), None)
    if choice is None and "lazy_search" in self._mistakes and listed:
      return listed[0]
    return choice

  def _looks_right(self, product: Product) -> bool:
    """Checks kind, title and price, which a page of results shows."""
    goal = self._goal
    return product == goal.product or (
      product.query == goal.product.query
      and all(a in product.title.lower() for a in goal.attributes)
      and (
        "ignore_price" in self._mistakes or product.price <= goal.price_upper
      )
    )

  def _plan_item(self, product: Product) -> list[str]:
    """Returns the clicks on the item page: options and buy, or back."""
    groups = [
      next((g for g in product.options.values() if wanted in g), ())
      for wanted in self._goal.options
    ]
    chosen = [
      v for v, group in zip(self._goal.options, groups, strict=True) if group
    ]
    if not self._accepts(product, chosen):
      return [pages.PREVIOUS]
    if "skip_last_option" in self._mistakes:
      chosen = chosen[:-1]
    elif "wrong_option" in self._mistakes and chosen:
      others = [v for v in groups[-1] if v != chosen[-1]]
      chosen[-1] = self._rng.choice(others or chosen[-1:])
    return [*chosen, pages.BUY]

  def _accepts(self, product: Product, chosen: Sequence[str]) -> bool:
    """Decides from the item page whether to buy the product."""
    if product == self._goal.product or product.id in self._seen:
      return True
    if not self._looks_right(product):
      return True  # clicked by mistake, and bought by mistake
    score = score_purchase(product, chosen, self._goal)
    return (
      bool(self._mistakes & {"settle", "first_result"})
      or (score.r_type, score.r_att) == (1, 1)
      and score.r_option in (None, 1)
    )

  def _search(self) -> Message:
    """Searches for the next query, or again for the title."""
    query = self._queries.pop(0) if self._queries else self._goal.product.title
    return self._call(prompts.SEARCH, {prompts.KEYWORDS: query})

  def _click(self, value: str) -> Message:
    return self._call(prompts.CLICK, {prompts.VALUE: value.lower()})

  def _call(self, name: str, arguments: Mapping[str, str]) -> Message:
    call = self.write_call(name, json.dumps(arguments))
    return Message("assistant", tool_calls=(call,))
