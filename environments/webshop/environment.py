"""WebShop: buys what an instruction asks for, by searching and clicking.

The environment of arXiv:2207.01206 in AgentBench's version: its tools, pages,
rules and reward, without Flask, Java, spaCy or its 16 GB of data. Shops are
generated unless a file of listings is given.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import require_one_of, require_positive
from agentrl_jax.errors import ConfigError
from environments.webshop.expert import MISTAKES, Shopper
from environments.webshop.generation.generator import Generator
from environments.webshop.listings.loader import Listings
from environments.webshop.prompts import SYSTEM_PROMPTS, make_tools
from environments.webshop.scripted import POLICIES
from environments.webshop.session import ShoppingSession
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.pages import SEPARATOR, PageStyle
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

  Args:
    products: path of a file of listings (see `listings`); None generates
      shops. Only generated shops use `num_train`, `num_test`,
      `catalogue_size`, `difficulty`, `max_siblings`, `tasks_per_catalogue` and
      `num_cached`.
    attributes, instructions: upstream's `items_ins_v2.json` and
      `items_human_ins.json`, if `products` is its `items_shuffle.json`.
    cache: folder of stores of large files; None is the user's cache.
    upstream_splits: use upstream's splits of the goals that people wrote.
    upstream_quirks: parse actions as upstream does; see `session`.
    num_train, num_test: sizes of the splits; a larger split begins with the
      tasks of a smaller one.
    catalogue_size: products per generated shop.
    difficulty: "easy", "siblings", "prices", "paraphrases" or "hard", which is
      all three; see `families.Difficulty`.
    max_siblings: in easy and paraphrases shops, the number of products that may
      share kind and attributes, and differ only in price and options; with 1 a
      good search finds the right product.
    tasks_per_catalogue: consecutive tasks that share a shop.
    num_cached: generated shops in memory, a few hundred kB each.
    max_rounds: answers until the episode ends without a purchase.
    system_prompt: "upstream" or "short".
    describe_tools: whether tools and arguments have descriptions.
    expert_names_options: whether the expert searches for the wanted options,
      too. Listings are indexed with their options, so that this finds the right
      product more often.
    Other arguments: the content of pages; see `pages.PageStyle`. `COMPACT` has
      values for policies with little context.
  """

  name = "webshop"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "first_result"
  cache_size = 0  # the generator caches shops, up to `num_cached`

  def __init__(
    self,
    *,
    products: str | None = None,
    attributes: str | None = None,
    instructions: str | None = None,
    cache: str | None = None,
    upstream_splits: bool = False,
    upstream_quirks: bool = False,
    num_train: int = 11_000,
    num_test: int = 200,
    catalogue_size: int = 100,
    tasks_per_catalogue: int = 8,
    difficulty: str = "hard",
    max_siblings: int = 3,
    num_cached: int = 64,
    max_rounds: int = 20,
    system_prompt: str = "upstream",
    describe_tools: bool = True,
    expert_names_options: bool = False,
    results_per_page: int = 10,
    separator: str = SEPARATOR,
    repeat_instruction: bool = True,
    repeat_item: bool = True,
    list_actions: bool = True,
    show_headings: bool = True,
    show_navigation: bool = True,
    show_subpages: bool = True,
    show_attributes: bool = False,
  ):
    require_one_of(SYSTEM_PROMPTS, system_prompt=system_prompt)
    if not separator:
      raise ConfigError("webshop separator is empty; texts would be joined")
    require_positive(
      num_train=num_train,
      num_test=num_test,
      catalogue_size=catalogue_size,
      tasks_per_catalogue=tasks_per_catalogue,
      num_cached=num_cached,
      max_rounds=max_rounds,
      results_per_page=results_per_page,
    )
    self._max_rounds = max_rounds
    self._system_prompt = SYSTEM_PROMPTS[system_prompt]
    self._tools = make_tools(described=describe_tools)
    self._style = PageStyle(
      results_per_page=results_per_page,
      separator=separator,
      repeat_instruction=repeat_instruction,
      repeat_item=repeat_item,
      list_actions=list_actions,
      show_headings=show_headings,
      show_navigation=show_navigation,
      show_subpages=show_subpages,
      show_attributes=show_attributes,
    )
    self._upstream_quirks = upstream_quirks
    self._expert_names_options = expert_names_options
    self._source: Generator | Listings
    if products is None:
      _require_products(
        attributes=attributes,
        instructions=instructions,
        cache=cache,
        upstream_splits=upstream_splits,
      )
      self._source = Generator(
        catalogue_size=catalogue_size,
        tasks_per_catalogue=tasks_per_catalogue,
        num_cached=num_cached,
        difficulty=difficulty,
        max_siblings=max_siblings,
      )
      num_tasks = {"train": num_train, "test": num_test}
    else:
      self._source = Listings(
        products,
        attributes=attributes or "",
        instructions=instructions or "",
        cache=cache or "",
        upstream_splits=upstream_splits,
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
      style=self._style,
      system_prompt=self._system_prompt,
      tools=self._tools,
      max_rounds=self._max_rounds,
      upstream_quirks=self._upstream_quirks,
    )

  def training_information(self, task: Task) -> str:
    """Returns the product that the goal is about, and the wanted options."""
    _, goal = self.find(task)
    return "\n".join([goal.product.id, *goal.options])

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    catalogue, goal = self.find(task)
    return Shopper(
      catalogue,
      goal,
      separator=self._style.separator,
      names_options=self._expert_names_options,
      seed=seed,
      mistakes=mistakes,
    )


def _require_products(**settings: str | bool | None) -> None:
  given = [name for name, value in settings.items() if value]
  if given:
    raise ConfigError(
      f"webshop {', '.join(given)} describe how a file of listings is read; "
      "give the file as products, or leave them out to generate shops"
    )
