"""WebShop: buys what an instruction asks for, by searching and clicking.

The environment of arXiv:2207.01206 in AgentBench's version: its tools, pages,
rules and reward, without Flask, Java, spaCy or its 16 GB of data. Shops are
generated unless a file of listings is given.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.errors import ConfigError
from environments.options import WebShopOptions
from environments.webshop.expert import MISTAKES, Shopper
from environments.webshop.generation.generator import ShopGenerator
from environments.webshop.listings.loader import Listings
from environments.webshop.prompts import SYSTEM_PROMPTS, make_tools
from environments.webshop.scripted import POLICIES
from environments.webshop.session import ShoppingSession
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal

# Options for short episodes: `WebShop(**COMPACT)`.
COMPACT: Mapping[str, Any] = {
  "system_prompt": "short",
  "describe_tools": False,
  "results_per_page": 3,
  "separator": "\n",
  "repeat_instruction": False,
  "repeat_item": False,
  "list_actions": False,
  "show_headings": False,
  "show_navigation": False,
  "show_subpages": False,
}


class WebShop(IndexedEnvironment[tuple[Catalogue, Goal]]):
  """Tasks of a goal and a shop, with WebShop's reward, of which 1.0 is success.

  Its keyword arguments are the fields of `WebShopOptions`; `COMPACT` has values
  for policies with little context.
  """

  name = "webshop"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "first_result"
  __signature__ = inspect.signature(WebShopOptions)
  cache_size = 0  # the generator caches shops, up to `num_cached`

  def __init__(self, **keywords: Any):
    self._options = options = WebShopOptions(**keywords)
    self._system_prompt = SYSTEM_PROMPTS[options.system_prompt]
    self._tools = make_tools(described=options.describe_tools)
    self._source: ShopGenerator | Listings
    if not options.products:
      _require_products(
        attributes=options.attributes,
        human_instructions=options.human_instructions,
        upstream_splits=options.upstream_splits,
      )
      self._source = ShopGenerator(options)
      num_tasks = {"train": options.num_train, "test": options.num_test}
    else:
      self._source = Listings(
        options.products,
        attributes=options.attributes,
        instructions=options.human_instructions,
        upstream_splits=options.upstream_splits,
      )
      num_tasks = {s: len(self._source.goals[s]) for s in SPLITS}
    super().__init__(num_tasks=num_tasks)

  def generate(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    """Returns a shop and a goal, generated or from the file of listings."""
    return self._source.find(split, index)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; the seed has no effect."""
    del seed
    catalogue, goal = self.find(task)
    yield ShoppingSession(
      catalogue,
      goal,
      style=self._options,
      system_prompt=self._system_prompt,
      tools=self._tools,
      max_rounds=self._options.max_rounds,
      upstream_quirks=self._options.upstream_quirks,
    )

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    catalogue, goal = self.find(task)
    return Shopper(
      catalogue,
      goal,
      separator=self._options.separator,
      names_options=self._options.expert_names_options,
      seed=seed,
      mistakes=mistakes,
    )


def _require_products(**settings: str | bool) -> None:
  given = [name for name, value in settings.items() if value]
  if given:
    raise ConfigError(
      f"webshop {', '.join(given)} describe how a file of listings is read; "
      "give the file as products, or leave them out to generate shops"
    )
