"""Families of generated products: a wanted product and near misses.

Each sibling of the wanted product fails the goal in exactly one respect, and a
search cannot tell them apart: a missing option is named in the description
("large sold out"), and products that are too expensive or lack an attribute
offer all wanted options. Siblings that lack an option or an attribute may be
cheaper than the wanted product.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.generation import words
from environments.webshop.generation.goals import canonical_goal, make_goal
from environments.webshop.generation.words import Kind
from environments.webshop.shop.product import Goal, Product

NUM_WITHOUT_OPTION = 3
NUM_WITHOUT_ATTRIBUTE = 3
NUM_TOO_EXPENSIVE = 3
NUM_SHOWN = 2  # attributes in a title; one more is in the features
NUM_STOCKED, NUM_OFFERED = 4, 3  # values of a group, per kind and per product
MIN_PRICE = 2  # dollars
SIBLING_DRAWS = 40  # of one sibling, before another goal is drawn
MAX_CHEAPER, MAX_EXCESS = 20, 40  # dollars below the product, above the limit
MAX_DRAWS = 10_000  # each text belongs to the split with probability 1/2

Options = Mapping[str, tuple[str, ...]]
_TitleKey = tuple[str, frozenset[str]]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difficulty:
  """Obstacles in generated shops.

  Attributes:
    siblings: each wanted product has siblings with search texts like its own,
      of which some lack a wanted option and some a wanted attribute.
    prices: each wanted product has siblings that are above the price limit and
      otherwise satisfy the goal.
    paraphrases: instructions word attributes differently from all listings.
  """

  siblings: bool = False
  prices: bool = False
  paraphrases: bool = False

  @property
  def has_families(self) -> bool:
    """Returns whether wanted products have siblings."""
    return self.siblings or self.prices

  @property
  def family_size(self) -> int:
    num_near = NUM_WITHOUT_OPTION + NUM_WITHOUT_ATTRIBUTE
    return 1 + num_near * self.siblings + NUM_TOO_EXPENSIVE * self.prices


DIFFICULTIES: Mapping[str, Difficulty] = {
  "easy": Difficulty(),
  "siblings": Difficulty(siblings=True),
  "prices": Difficulty(prices=True),
  "paraphrases": Difficulty(paraphrases=True),
  "hard": Difficulty(siblings=True, prices=True, paraphrases=True),
}


def draw(make: Callable[[], T], accepts: Callable[[T], bool]) -> T:
  """Draws until a result is accepted."""
  for _ in range(MAX_DRAWS):
    drawn = make()
    if accepts(drawn):
      return drawn
  raise ConfigError(
    f"WebShop drew nothing for its split in {MAX_DRAWS} draws; make the "
    "catalogue larger or let fewer tasks share it (webshop catalogue_size, "
    "tasks_per_catalogue)"
  )


def make_product(
  kind: Kind,
  brand: str,
  attributes: Sequence[str],
  options: Options,
  price: float,
  *,
  sold_out: str = "",
) -> Product:
  """Makes a listing without id; its title has two of the three attributes."""
  note = f", {sold_out} sold out" if sold_out else ""
  return Product(
    id="",
    title=f"{brand} {attributes[0]} {attributes[1]} {kind.query}",
    query=kind.query,
    department=kind.category.partition(" › ")[0],
    category=kind.category,
    attributes=tuple(attributes),
    options=options,
    price=price,
    price_tag=f"${price}",
    description=f"a {kind.query} by {brand}{note}",
    features=(f"{attributes[2]}, {attributes[0]}", attributes[1]),
  )


@dataclasses.dataclass(frozen=True)
class ProductFamily:
  """A goal, its product `members[0]`, and the siblings."""

  goal: Goal
  members: tuple[Product, ...]

  @functools.cached_property
  def wanted(self) -> Mapping[str, str]:
    """The wanted options by group."""
    return _wanted_options(self.goal)

  @functools.cached_property
  def titles(self) -> Set[_TitleKey]:
    """The kinds and attributes in titles of members."""
    return {_title_key(member) for member in self.members}


@dataclasses.dataclass(kw_only=True)
class FamilyMaker:
  """Draws families of one kind, with texts of one split."""

  rng: random.Random
  kind: Kind
  split: str
  difficulty: Difficulty

  def __post_init__(self) -> None:
    self._stock = {
      group: self.rng.sample(words.OPTION_VALUES[group], NUM_STOCKED)
      for group in self.kind.groups
    }

  def make(self, others: Sequence[ProductFamily]) -> ProductFamily:
    """Draws a family such that each goal is satisfied by its product alone."""
    family = None
    while family is None:
      goal = self._draw_goal(others)
      family = self._try_family(goal, others)
    return family

  def make_single(self, others: Sequence[ProductFamily]) -> Product:
    """Draws a product that has no family and satisfies no goal."""
    return draw(
      lambda: self._draw_product(self._draw_attributes(), {}, {}),
      lambda product: self._is_apart(product, others),
    )

  def _is_apart(
    self, product: Product, others: Sequence[ProductFamily]
  ) -> bool:
    """Checks that a product belongs to the split, and to no other goal."""
    if split_of(product.canonical_text) != self.split:
      return False
    key = _title_key(product)
    return not any(
      key == _title_key(other.goal.product)
      or _satisfies(product, other.goal, other.wanted)
      for other in others
      if other.goal.product.query == product.query
    )

  def _draw_goal(self, others: Sequence[ProductFamily]) -> Goal:
    """Draws a goal of the split, for attributes that no title has yet."""
    taken = set[_TitleKey]().union(*(other.titles for other in others))
    return draw(
      self._make_goal,
      lambda goal: (
        _title_key(goal.product) not in taken
        and split_of(canonical_goal(goal)) == self.split
        and split_of(goal.instruction) == self.split
        and self._is_apart(goal.product, others)
        and not self._is_satisfied(goal, others)
      ),
    )

  def _is_satisfied(self, goal: Goal, others: Sequence[ProductFamily]) -> bool:
    wanted = _wanted_options(goal)
    return any(_satisfies(m, goal, wanted) for o in others for m in o.members)

  def _make_goal(self) -> Goal:
    """Draws a goal for both attributes of a title, which few products have."""
    product = self._draw_product(self._draw_attributes(), {}, {})
    return make_goal(
      self.rng,
      product,
      product.attributes[:NUM_SHOWN],
      num_wanted=(NUM_SHOWN,),
      paraphrase=self.difficulty.paraphrases,
    )

  def _try_family(
    self, goal: Goal, others: Sequence[ProductFamily]
  ) -> ProductFamily | None:
    """Draws the family of a goal; None if siblings would satisfy another."""
    members = [goal.product]
    for make in self._makers(goal):
      drawn = (make() for _ in range(SIBLING_DRAWS))
      sibling = next((p for p in drawn if self._is_apart(p, others)), None)
      if sibling is None:
        return None
      members.append(sibling)
    return ProductFamily(goal, tuple(members))

  def _makers(self, goal: Goal) -> list[Callable[[], Product]]:
    """Returns a function for each sibling, which draws it."""
    makers: list[Callable[[], Product]] = []
    if self.difficulty.siblings:
      makers += [lambda: self._without_option(goal)] * NUM_WITHOUT_OPTION
      makers += [lambda: self._without_attribute(goal)] * NUM_WITHOUT_ATTRIBUTE
    if self.difficulty.prices:
      makers += [lambda: self._too_expensive(goal)] * NUM_TOO_EXPENSIVE
    return makers

  def _without_option(self, goal: Goal) -> Product:
    """Draws a product without one wanted option, named in its description."""
    wanted = _wanted_options(goal)
    missing = self.rng.choice(list(wanted))
    offered = {group: v for group, v in wanted.items() if group != missing}
    return self._draw_product(
      goal.product.attributes,
      offered,
      {missing: wanted[missing]},
      self._draw_low_price(goal),
    )

  def _without_attribute(self, goal: Goal) -> Product:
    """Draws a product with another attribute instead of a wanted one."""
    own = goal.product.attributes
    replaced = self.rng.choice(goal.attributes)
    other = self.rng.choice([a for a in self.kind.attributes if a not in own])
    attributes = tuple(other if a == replaced else a for a in own)
    return self._draw_product(
      attributes, _wanted_options(goal), {}, self._draw_low_price(goal)
    )

  def _too_expensive(self, goal: Goal) -> Product:
    price = int(goal.price_upper) + self.rng.randint(1, MAX_EXCESS)
    return self._draw_product(
      goal.product.attributes, _wanted_options(goal), {}, float(price)
    )

  def _draw_low_price(self, goal: Goal) -> float:
    lowest = max(MIN_PRICE, int(goal.product.price) - MAX_CHEAPER)
    return float(self.rng.randint(lowest, int(goal.price_upper) - 1))

  def _draw_attributes(self) -> tuple[str, ...]:
    # A smaller pool would have too few pairs for the families of a kind.
    return tuple(self.rng.sample(self.kind.attributes, NUM_SHOWN + 1))

  def _draw_product(
    self,
    attributes: Sequence[str],
    offered: Mapping[str, str],
    lacking: Mapping[str, str],
    price: float | None = None,
  ) -> Product:
    """Draws a listing with options to offer and, at most, one to lack."""
    options = {
      group: self._draw_values(group, offered.get(group), lacking.get(group))
      for group in self.kind.groups
    }
    sold_out = next(iter(lacking.values()), "") or self._draw_sold_out(options)
    if price is None:
      low, high = self.kind.prices
      price = float(self.rng.choice(range(low, high + 1)))
    brand = self.rng.choice(words.BRANDS)
    return make_product(
      self.kind, brand, attributes, options, price, sold_out=sold_out
    )

  def _draw_values(
    self, group: str, offered: str | None, lacking: str | None
  ) -> tuple[str, ...]:
    stock = [v for v in self._stock[group] if v != lacking and v != offered]
    chosen = self.rng.sample(stock, NUM_OFFERED - (offered is not None))
    if offered is not None:
      chosen.append(offered)
    return tuple([v for v in words.OPTION_VALUES[group] if v in chosen])

  def _draw_sold_out(self, options: Options) -> str:
    """Draws a value of the last group that is not offered."""
    group = list(options)[-1]
    return self.rng.choice(
      [v for v in words.OPTION_VALUES[group] if v not in options[group]]
    )


def _title_key(product: Product) -> _TitleKey:
  return product.query, frozenset(product.attributes[:NUM_SHOWN])


def _satisfies(product: Product, goal: Goal, wanted: Mapping[str, str]) -> bool:
  """Checks whether a purchase of the product can satisfy the goal.

  This is exact for generated listings, whose words match fully or not at all;
  `reward` compares any listing.
  """
  return (
    product.query == goal.product.query
    and product.price <= goal.price_upper
    and set(goal.attributes) <= set(product.attributes)
    and all(value in product.options[g] for g, value in wanted.items())
  )


def _wanted_options(goal: Goal) -> dict[str, str]:
  groups = [group for group, values in goal.product.options.items() if values]
  return dict(zip(groups, goal.options, strict=True))
