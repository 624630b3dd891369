"""Scripted shoppers: what is bought without understanding the wish.

They read pages as a policy does, compact or not: the instruction, lists of
results, a product's options, the words "color: red" and "lower than 40.00
dollars" in the instruction.
"""

import functools
import re
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, Tool
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
  """Searches the whole instruction, takes the first result, and buys it.

  Options that the instruction names are clicked, if there are such.

  Args:
    reads_prices: take the first result of the page that is cheap enough.
    goes_back: leave a product that lacks a named option, and take the next.
  """

  def __init__(
    self, *, seed: int, reads_prices: bool = False, goes_back: bool = False
  ):
    super().__init__(seed=seed)
    self._reads_prices, self._goes_back = reads_prices, goes_back
    self._instruction = ""
    self._seen: set[str] = set()  # products
    self._clicks: list[str] | None = None  # left on a product's page

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Searches once; then clicks what the page offers."""
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
    """Clicks a result; the first one if none will do."""
    self._clicks = None
    listed = results_of(texts)
    fresh = [id_ for id_ in listed if id_ not in self._seen]
    will_do = [
      id_
      for id_ in fresh
      if not self._reads_prices or self._affords(listed[id_])
    ]
    if not will_do:
      will_do, self._goes_back = [*fresh, *listed], False
    if not will_do:
      return self._click(pages.PREVIOUS)
    self._seen.add(will_do[0])
    return self._click(will_do[0])

  def _affords(self, price: float) -> bool:
    limit = _LIMIT.search(self._instruction)
    return limit is None or price <= float(limit[1])

  def _plan(self, texts: Sequence[str]) -> list[str]:
    """The named options that there are, and buying."""
    named = [value for _, value in _OPTION.findall(self._instruction)]
    offered = [value for value in named if value in texts]
    if self._goes_back and len(offered) < len(named):
      return [pages.PREVIOUS]
    return [*offered, pages.BUY]

  def _click(self, value: str) -> Message:
    return self.call(prompts.CLICK, value=value.lower())


class RandomShopper(ScriptedPolicy):
  """Searches the instruction, then clicks anything that is shown."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """A click on one of the page's texts; few of them lead nowhere."""
    texts = page_of(messages[-1])
    if len(messages) <= 2:
      keywords = _after("Instruction:", texts)
      return self.call(prompts.SEARCH, keywords=keywords)
    if any(_RESULTS in text for text in texts):
      texts = list(results_of(texts)) or [pages.BACK]
    value = self.rng.choice([t for t in texts if t not in _LEAVE] or texts)
    return self.call(prompts.CLICK, value=value.lower())


def page_of(message: Message) -> list[str]:
  """The texts of the page that a message shows."""
  page = message.content.partition(_ACTIONS)[0]
  return [t for part in page.split(" [SEP] ") for t in part.split("\n")]


def results_of(texts: Sequence[str]) -> Mapping[str, float]:
  """The prices of the products on a page of results, by id, in its order.

  A price follows the title, which follows the id.
  """
  return {
    texts[i - 2]: float(price[1])
    for i, text in enumerate(texts)
    if i >= 2 and (price := _PRICE.match(text))
  }


def _after(heading: str, texts: Sequence[str]) -> str:
  """The text that follows a heading; the last one if there is no heading."""
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
