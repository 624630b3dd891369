"""Scripted baselines of WebShop, which do not understand the goal.

They read pages as a policy does, compact or not: the instruction, results and
options, and in the instruction "color: red" and "lower than 40.00 dollars".
"""

import functools
import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import ScriptedPolicies, ScriptedPolicy
from environments.webshop import prompts
from environments.webshop.shop import pages

_ACTIONS = "\n\nAvailable Actions:"
_RESULTS = "(Total results: "
_OPTION = re.compile(r"(?:with|and) ([a-z ]+): ([^,]+)")
_LIMIT = re.compile(r"price lower than ([\d.]+) dollars")
_PRICE = re.compile(r"^\$([\d.]+)")
_LEAVE = frozenset((pages.BACK, pages.PREVIOUS, pages.NEXT))


class QuickShopper(ScriptedPolicy):
  """Searches for the whole instruction, and buys the first result.

  Options are clicked if the instruction names them.

  Args:
    reads_prices: take the first result below the price limit.
    goes_back: leave a product that lacks a named option, and take the next.
  """

  def __init__(
    self, *, seed: int, reads_prices: bool = False, goes_back: bool = False
  ):
    super().__init__(seed=seed)
    self._reads_prices, self._goes_back = reads_prices, goes_back
    self._instruction = ""
    self._seen: set[str] = set()  # ids of clicked products
    self._clicks: list[str] | None = None  # remaining ones on an item page

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    texts = page_of(messages[-1])
    if not self._instruction:
      self._instruction = _after("Instruction:", texts)
      return self.call(prompts.SEARCH, keywords=self._instruction)
    if any(_RESULTS in text for text in texts):
      return self._choose(texts)
    if self._clicks is None:
      self._clicks = self._plan(texts)
    return self._click(self._clicks.pop(0) if self._clicks else pages.BUY)

  def _choose(self, texts: Sequence[str]) -> Message:
    """Clicks an acceptable result, or else the first one."""
    self._clicks = None
    prices = prices_of(texts)
    unseen = [id_ for id_ in prices if id_ not in self._seen]
    candidates = [
      id_
      for id_ in unseen
      if not self._reads_prices or self._affords(prices[id_])
    ]
    if not candidates:
      candidates, self._goes_back = [*unseen, *prices], False
    if not candidates:
      return self._click(pages.PREVIOUS)
    self._seen.add(candidates[0])
    return self._click(candidates[0])

  def _affords(self, price: float) -> bool:
    limit = _LIMIT.search(self._instruction)
    return limit is None or price <= float(limit[1])

  def _plan(self, texts: Sequence[str]) -> list[str]:
    """Returns clicks on the named options that exist, and the purchase."""
    named = [value for _, value in _OPTION.findall(self._instruction)]
    offered = [value for value in named if value in texts]
    if self._goes_back and len(offered) < len(named):
      return [pages.PREVIOUS]
    return [*offered, pages.BUY]

  def _click(self, value: str) -> Message:
    return self.call(prompts.CLICK, value=value.lower())


class RandomShopper(ScriptedPolicy):
  """Searches for the instruction, then clicks texts of the page at random."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Clicks a random text of the page, but no navigation."""
    texts = page_of(messages[-1])
    if len(messages) <= 2:
      keywords = _after("Instruction:", texts)
      return self.call(prompts.SEARCH, keywords=keywords)
    if any(_RESULTS in text for text in texts):
      texts = list(prices_of(texts)) or [pages.BACK]
    value = self.rng.choice([t for t in texts if t not in _LEAVE] or texts)
    return self.call(prompts.CLICK, value=value.lower())


def page_of(message: Message) -> list[str]:
  """Returns the texts of the page in a message."""
  page = message.content.partition(_ACTIONS)[0]
  return [t for part in page.split(" [SEP] ") for t in part.split("\n")]


def prices_of(texts: Sequence[str]) -> Mapping[str, float]:
  """Returns the prices on a page of results by id.

  A page shows id, title and price of each product in this order.
  """
  return {
    texts[i - 2]: float(price[1])
    for i, text in enumerate(texts)
    if i >= 2 and (price := _PRICE.match(text))
  }


def _after(heading: str, texts: Sequence[str]) -> str:
  """Returns the text after a heading, or the last text without a heading."""
  if heading in texts:
    return texts[texts.index(heading) + 1]
  return texts[-1]


POLICIES: ScriptedPolicies = {
  "random": RandomShopper,
  "first_result": QuickShopper,
  "first_affordable": functools.partial(QuickShopper, reads_prices=True),
  "first_fitting": functools.partial(
    QuickShopper, reads_prices=True, goes_back=True
  ),
}
