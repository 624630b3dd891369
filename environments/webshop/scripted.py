"""A scripted baseline of WebShop, which does not understand the goal.

It reads pages as a policy does, compact or not: the instruction, results and
options, and in the instruction "color: red".
"""

import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies, ScriptedPolicy
from environments.webshop import prompts
from environments.webshop.shop import pages

_ACTIONS = "\n\nAvailable Actions:"
_RESULTS = "(Total results: "
_OPTION = re.compile(r"(?:with|and) ([a-z ]+): ([^,]+)")
_PRICE = re.compile(r"^\$([\d.]+)")


class FirstResult(ScriptedPolicy):
  """Searches for the whole instruction, and buys the first result.

  Options are clicked if the instruction names them.
  """

  def __init__(self, *, seed: int):
    super().__init__(seed=seed)
    self._has_searched = False
    self._named: list[str] = []  # values of options in the instruction
    self._clicks: list[str] | None = None  # remaining ones on an item page

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    texts = page_of(messages[-1])
    if not self._has_searched:
      self._has_searched = True
      instruction = _after("Instruction:", texts)
      self._named = [value for _, value in _OPTION.findall(instruction)]
      return self.call(prompts.SEARCH, keywords=instruction)
    if any(_RESULTS in text for text in texts):
      results = [texts[i - 2] for i, t in enumerate(texts) if _PRICE.match(t)]
      return self._click(results[0] if results else pages.PREVIOUS)
    if self._clicks is None:
      self._clicks = [value for value in self._named if value in texts]
    return self._click(self._clicks.pop(0) if self._clicks else pages.BUY)

  def _click(self, value: str) -> Message:
    return self.call(prompts.CLICK, value=value.lower())


def page_of(message: Message) -> list[str]:
  """Returns the texts of the page in a message."""
  page = message.content.partition(_ACTIONS)[0]
  return [t for part in page.split(" [SEP] ") for t in part.split("\n")]


def _after(heading: str, texts: Sequence[str]) -> str:
  """Returns the text after a heading, or the last text without a heading."""
  if heading in texts:
    return texts[texts.index(heading) + 1]
  return texts[-1]


POLICIES: ScriptedPolicies = {**GENERIC, "first_result": FirstResult}
