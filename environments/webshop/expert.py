"""A scripted shopper that knows the product, and errs as often as it is told.

It plays by what the pages show, so that a policy can learn it: searches kind
and attributes, leafs through the results to the first product that looks right,
goes back when a wanted option is missing, chooses, buys. Each mistake is made
or not made for a whole attempt: whoever learns from such demonstrations sees
the right way, too.
"""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.webshop import prompts
from environments.webshop.shop import pages
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product
from environments.webshop.shop.reward import judge

MISTAKES = (
  "lazy_search",  # searches the kind alone and looks at one page of results
  "first_result",  # clicks the first result, whatever it is
  "ignore_price",  # does not compare the price with the limit
  "settle",  # buys although a wanted option is missing
  "skip_last_option",  # leaves the last option unchosen
  "wrong_option",  # chooses another value for the last option
)


class Shopper(Expert):
  """Plays one goal in one catalogue."""

  def __init__(
    self,
    catalogue: Catalogue,
    goal: Goal,
    *,
    separator: str,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    require_known(mistakes, MISTAKES, where="WebShop's expert")
    rng = random.Random(f"{seed}/{goal.instruction}")
    self._made = {m for m in MISTAKES if rng.random() < mistakes.get(m, 0.0)}
    self._rng = rng
    self._catalogue = catalogue
    self._goal = goal
    self._separator = separator  # between the texts of a page
    self._queries = self._plan_queries()
    self._seen: set[str] = set()  # ids of products that were clicked
    self._on_item: list[str] = []  # what is left to click on a product's page
    self._num_calls = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The next call, from the page that the last message shows."""
    page, _, _ = messages[-1].content.partition("\n\nAvailable Actions:")
    texts = page.split(self._separator)
    if pages.BUY in texts:
      return self._click(self._on_item.pop(0))
    if any("(Total results: " in text for text in texts):
      return self._leaf(texts)
    return self._search()

  def _plan_queries(self) -> list[str]:
    """What to search for, in turn, until a product is found."""
    product = self._goal.product
    if "lazy_search" in self._made:
      return [product.query, product.title]
    described = " ".join((*self._goal.attributes, product.query))
    return [described, product.title]

  def _leaf(self, texts: Sequence[str]) -> Message:
    """Clicks a product among the results, or looks on."""
    listed = [p for text in texts if (p := self._catalogue.find(text))]
    choice = self._choose_among(listed)
    if choice is not None:
      self._on_item = self._plan_item(choice)
      self._seen.add(choice.id)
      return self._click(choice.id)
    return self._click(pages.NEXT) if listed else self._search()

  def _choose_among(self, listed: Sequence[Product]) -> Product | None:
    """The product to click, or None to look on."""
    if "first_result" in self._made and listed:
      return listed[0]
    right = (p for p in listed if p.id not in self._seen)
    choice = next((p for p in right if self._looks_right(p)), None)
    if choice is None and "lazy_search" in self._made and listed:
      return listed[0]
    return choice

  def _looks_right(self, product: Product) -> bool:
    """Whether kind, title and price fit, as the list of results shows them."""
    wanted = self._goal
    return product == wanted.product or (
      product.query == wanted.product.query
      and all(a in product.title.lower() for a in wanted.attributes)
      and ("ignore_price" in self._made or product.price <= wanted.price_upper)
    )

  def _plan_item(self, product: Product) -> list[str]:
    """What to click on the product's page: options and buy, or back."""
    groups = [
      next((g for g in product.options.values() if wanted in g), ())
      for wanted in self._goal.options
    ]
    chosen = [
      v for v, group in zip(self._goal.options, groups, strict=True) if group
    ]
    if not self._is_content(product, chosen):
      return [pages.PREVIOUS]
    if "skip_last_option" in self._made:
      chosen = chosen[:-1]
    elif "wrong_option" in self._made and chosen:
      others = [v for v in groups[-1] if v != chosen[-1]]
      chosen[-1] = self._rng.choice(others or chosen[-1:])
    return [*chosen, pages.BUY]

  def _is_content(self, product: Product, chosen: Sequence[str]) -> bool:
    """Whether to buy it, now that its page is seen."""
    if product == self._goal.product or product.id in self._seen:
      return True
    if not self._looks_right(product):
      return True  # it was clicked by mistake, and is bought by mistake
    verdict = judge(product, chosen, self._goal)
    return (
      bool(self._made & {"settle", "first_result"})
      or (verdict.r_type, verdict.r_att) == (1, 1)
      and verdict.r_option in (None, 1)
    )

  def _search(self) -> Message:
    """The next query; the last one again when there are no more."""
    query = self._queries.pop(0) if self._queries else self._goal.product.title
    return self._call(prompts.SEARCH, {prompts.KEYWORDS: query})

  def _click(self, value: str) -> Message:
    return self._call(prompts.CLICK, {prompts.VALUE: value.lower()})

  def _call(self, name: str, arguments: Mapping[str, str]) -> Message:
    self._num_calls += 1
    call = ToolCall(name, json.dumps(arguments), id=f"call_{self._num_calls}")
    return Message("assistant", tool_calls=(call,))
