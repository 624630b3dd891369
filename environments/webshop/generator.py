"""Shops and goals out of nothing but (split, index).

Several tasks share one catalogue. In it, families of products have the same
kind and attributes and differ in price and options, others share some of their
attributes: a search by kind alone seldom finds the right one first, a search by
kind and attributes mostly does, and the price has to be read all the same.

No listing, no wish and no instruction belongs to two splits: each is drawn
again until `split_of` its text is the split it is made for.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Mapping
from typing import TypeVar

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.webshop import words
from environments.webshop.catalogue import Catalogue
from environments.webshop.product import Goal, Product
from environments.webshop.words import Kind

PRODUCTS_PER_KIND = 10
PRICE_STEPS = [10.0 * i for i in range(1, 100)]  # dollars
MAX_DRAWS = 10_000  # each one falls on the right side with probability 1/2


@dataclasses.dataclass(frozen=True)
class Shop:
  """A catalogue and the goals that are played in it."""

  catalogue: Catalogue
  goals: tuple[Goal, ...]


class Generator:
  """Makes shops, and keeps the last few."""

  def __init__(
    self, *, catalogue_size: int, tasks_per_catalogue: int, num_cached: int
  ):
    self._catalogue_size = catalogue_size
    self._tasks_per_catalogue = tasks_per_catalogue
    self.shop = functools.lru_cache(maxsize=num_cached)(self._make_shop)

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    """The shop and the wish of one task."""
    number, position = divmod(index, self._tasks_per_catalogue)
    shop: Shop = self.shop(split, number)
    return shop.catalogue, shop.goals[position]

  def _make_shop(self, split: str, number: int) -> Shop:
    rng = random.Random(f"{split}/{number}/{self._catalogue_size}")
    catalogue = Catalogue(self._make_products(rng, split))
    goals: dict[str, Goal] = {}  # by wish: no two of a shop are alike
    while len(goals) < self._tasks_per_catalogue:
      goal = _draw(
        lambda: make_goal(rng, rng.choice(catalogue.products)),
        lambda goal: (
          wish_of(goal) not in goals
          and split_of(wish_of(goal)) == split
          and split_of(goal.instruction) == split
        ),
      )
      goals[wish_of(goal)] = goal
    return Shop(catalogue, tuple(goals.values()))

  def _make_products(self, rng: random.Random, split: str) -> list[Product]:
    size = self._catalogue_size
    num_kinds = min(len(words.KINDS), -(-size // PRODUCTS_PER_KIND))
    kinds = rng.sample(words.KINDS, num_kinds)
    drafts = [
      draft
      for i, kind in enumerate(kinds)
      for draft in _make_kind(rng, kind, len(range(i, size, num_kinds)), split)
    ]
    rng.shuffle(drafts)
    ids = rng.sample(range(*_id_range(size)), size)
    return [
      dataclasses.replace(draft, id=f"b{number}")
      for draft, number in zip(drafts, ids, strict=True)
    ]


def make_goal(rng: random.Random, product: Product) -> Goal:
  """A wish that `product` fulfils, put as upstream's synthetic goals are."""
  num_attributes = min(rng.choice((1, 2, 2)), len(product.attributes))
  attributes = tuple(rng.sample(product.attributes, num_attributes))
  chosen = {
    name: rng.choice(values) for name, values in product.options.items()
  }
  price_upper = draw_price_upper(rng, product.price)
  opening = rng.choice(words.OPENINGS)
  wanted = rng.choice(_PHRASES)(" and ".join(attributes), product.query)
  return Goal(
    instruction=f"{opening} {wanted}{option_text(chosen)}"
    f"{price_text(price_upper)}",
    product=product,
    attributes=attributes,
    options=tuple(chosen.values()),
    price_upper=price_upper,
  )


def draw_price_upper(rng: random.Random, price: float) -> float:
  """The larger of two of the next four tens above `price`; inf if none."""
  above = [step for step in PRICE_STEPS if step > price][:4]
  return max(rng.sample(above, 2)) if len(above) >= 2 else math.inf


def option_text(chosen: Mapping[str, str]) -> str:
  """The part of an instruction that names options, as upstream words it."""
  named = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
  return f" with {named}" if named else ""


def price_text(price_upper: float) -> str:
  """The part of an instruction that names the price, as upstream words it."""
  if math.isinf(price_upper):
    return ""
  return f", and price lower than {price_upper:.2f} dollars"


def wish_of(goal: Goal) -> str:
  """What is wanted, however it is put: kind, attributes, options; no price."""
  attributes = ", ".join(sorted(goal.attributes))
  return f"{goal.product.query}: {attributes}; {', '.join(goal.options)}"


_PHRASES: tuple[Callable[[str, str], str], ...] = (
  lambda attributes, query: f"{attributes} {query}",
  lambda attributes, query: f"{query} that is {attributes}",
  lambda attributes, query: f"{query}, {attributes}",
)


def _make_kind(
  rng: random.Random, kind: Kind, count: int, split: str
) -> list[Product]:
  """`count` products of one kind, in families of one to three."""
  pool = rng.sample(kind.attributes, 6)
  products: list[Product] = []
  while len(products) < count:
    attributes = tuple(rng.sample(pool, 3))
    family = min(rng.choice((1, 1, 2, 3)), count - len(products))
    for _ in range(family):
      product = _draw(
        lambda: _make_product(rng, kind, attributes),  # noqa: B023 (used now)
        lambda product: split_of(product.canonical_text) == split,
      )
      products.append(product)
  return products


def _make_product(
  rng: random.Random, kind: Kind, attributes: tuple[str, ...]
) -> Product:
  """A listing whose title shows two attributes; its features tell the rest."""
  brand = rng.choice(words.BRANDS)
  price = float(rng.randint(*kind.prices))
  return Product(
    id="",
    title=f"{brand} {attributes[0]} {attributes[1]} {kind.query}",
    query=kind.query,
    category=kind.category,
    attributes=attributes,
    options={group: _some_values(rng, group) for group in kind.groups},
    price=price,
    price_tag=f"${price}",
    description=f"a {kind.query} by {brand}",
    features=(f"{attributes[2]}, {attributes[0]}", attributes[1]),
  )


def _some_values(rng: random.Random, group: str) -> tuple[str, ...]:
  """Two to four of the group's values, in the group's order."""
  values = words.OPTION_VALUES[group]
  kept = set(rng.sample(values, rng.randint(2, 4)))
  return tuple(value for value in values if value in kept)


def _id_range(size: int) -> tuple[int, int]:
  """Three digits while they leave room, so that ids are short."""
  digits = max(3, len(str(2 * size)))
  return 10 ** (digits - 1), 10**digits


T = TypeVar("T")


def _draw(make: Callable[[], T], is_fit: Callable[[T], bool]) -> T:
  """The first draw that fits."""
  for _ in range(MAX_DRAWS):
    drawn = make()
    if is_fit(drawn):
      return drawn
  raise ConfigError(
    f"WebShop found nothing fit for its split in {MAX_DRAWS} draws; make the "
    "catalogue larger or let fewer tasks share it (webshop catalogue_size, "
    "tasks_per_catalogue)"
  )
