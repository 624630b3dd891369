"""A scripted shopper that knows the product, and errs as often as it is told.

It plays by looking at the pages, so that it stays right whatever came before:
searches kind and attributes, leafs through the results, clicks the product,
chooses its options, buys. Each mistake is made or not made for a whole attempt:
a policy that learns from such demonstrations sees the right way, too.
"""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, Tool, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.errors import ConfigError
from environments.webshop import pages, prompts
from environments.webshop.catalogue import Catalogue
from environments.webshop.product import Goal, Product

MISTAKES = (
  "lazy_search",  # searches the kind alone and looks at one page of results
  "first_result",  # clicks the first result, whatever it is
  "ignore_price",  # takes the first listing with the attributes in its title
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
    seed: int,
    mistakes: Mapping[str, float],
  ):
    unknown = mistakes.keys() - set(MISTAKES)
    if unknown:
      raise ConfigError(
        f"webshop's expert makes no mistake {', '.join(sorted(unknown))}; "
        f"it knows {', '.join(MISTAKES)}"
      )
    rng = random.Random(seed)
    self._made = {m for m in MISTAKES if rng.random() < mistakes.get(m, 0.0)}
    self._rng = rng
    self._catalogue = catalogue
    self._goal = goal
    self._queries = self._plan_queries()
    self._to_choose: list[str] = []
    self._num_calls = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The next call, from the page that the last message shows."""
    texts = _texts_of(messages[-1].content)
    if pages.BUY in texts:
      return self._click((self._to_choose or [pages.BUY]).pop(0))
    if any("(Total results: " in text for text in texts):
      return self._leaf(texts)
    return self._search()

  def _plan_queries(self) -> list[str]:
    """What to search for, in turn, until the product is found."""
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
      self._to_choose = self._plan_options(choice)
      return self._click(choice.id)
    return self._click(pages.NEXT) if listed else self._search()

  def _choose_among(self, listed: Sequence[Product]) -> Product | None:
    """The product to click, or None to look on."""
    wanted = self._goal.product
    if "first_result" in self._made and listed:
      return listed[0]
    if "ignore_price" in self._made:
      return next((p for p in listed if self._looks_right(p)), None)
    if wanted in listed:
      return wanted
    return listed[0] if "lazy_search" in self._made and listed else None

  def _looks_right(self, product: Product) -> bool:
    """Whether kind and title fit, price and options unread."""
    return product == self._goal.product or (
      product.query == self._goal.product.query
      and all(a in product.title.lower() for a in self._goal.attributes)
    )

  def _plan_options(self, product: Product) -> list[str]:
    """The wanted options, as far as `product` offers them."""
    groups = []
    for wanted in self._goal.options:
      group = next((g for g in product.options.values() if wanted in g), None)
      if group is not None:
        groups.append((wanted, group))
    chosen = [wanted for wanted, _ in groups]
    if "skip_last_option" in self._made:
      return chosen[:-1]
    if "wrong_option" in self._made and groups:
      wanted, group = groups[-1]
      others = [value for value in group if value != wanted] or [wanted]
      chosen[-1] = self._rng.choice(others)
    return chosen

  def _search(self) -> Message:
    """The next query; the last one again when there are no more."""
    query = self._queries.pop(0) if self._queries else self._goal.product.title
    return self._call(prompts.SEARCH, query)

  def _click(self, value: str) -> Message:
    return self._call(prompts.CLICK, value.lower())

  def _call(self, tool: Tool, value: str) -> Message:
    self._num_calls += 1
    (argument,) = tool.parameters["required"]
    call = ToolCall(
      tool.name, json.dumps({argument: value}), id=f"call_{self._num_calls}"
    )
    return Message("assistant", tool_calls=(call,))


def _texts_of(content: str) -> list[str]:
  """The texts of the page in a message, without heading and action list."""
  page = next(
    (line for line in content.split("\n") if pages.SEPARATOR in line), ""
  )
  return page.split(pages.SEPARATOR)
