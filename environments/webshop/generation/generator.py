"""Shops and goals out of nothing but (split, index).

Several tasks share one catalogue. How hard it is to find what is wanted in it
is said by `difficulty`. In an easy shop families of products have the same kind
and attributes and differ in price and options, others share some of their
attributes; in shops with siblings or prices, each wanted product has some that
were made against it (`families`), and nothing else fulfils the wish. Titles
show all that a goal may ask for, so nobody has to guess what to click.

No listing, no wish and no instruction belongs to two splits: each is drawn
again until `split_of` its text is the split it is made for.
"""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.generation import words
from environments.webshop.generation.difficulty import Difficulty
from environments.webshop.generation.drawing import draw
from environments.webshop.generation.families import (
  NUM_SHOWN,
  Family,
  FamilyMaker,
  family_size,
)
from environments.webshop.generation.goals import make_goal, wish_of
from environments.webshop.generation.words import Kind
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product

PRODUCTS_PER_KIND = 10
MAX_FAMILIES_PER_KIND = 4  # more run out of attributes that tell them apart
FAMILIES_PER_KIND = 3  # where wanted products have siblings made against them
FAMILY_SIZES = (1, 1, 2, 3)  # drawn from; siblings differ in price and options


@dataclasses.dataclass(frozen=True)
class Shop:
  """A catalogue and the goals that are played in it."""

  catalogue: Catalogue
  goals: tuple[Goal, ...]


class Generator:
  """Makes shops, and keeps the last few."""

  def __init__(
    self,
    *,
    catalogue_size: int,
    tasks_per_catalogue: int,
    num_cached: int,
    difficulty: Difficulty,
    max_siblings: int = max(FAMILY_SIZES),
  ):
    if difficulty.makes_families:
      _require_room(catalogue_size, tasks_per_catalogue, difficulty)
    self._difficulty = difficulty
    self._catalogue_size = catalogue_size
    self._families = [size for size in FAMILY_SIZES if size <= max_siblings]
    self._tasks_per_catalogue = tasks_per_catalogue
    self.shop = functools.lru_cache(maxsize=num_cached)(self._make_shop)

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    """The shop and the wish of one task."""
    number, position = divmod(index, self._tasks_per_catalogue)
    shop: Shop = self.shop(split, number)
    return shop.catalogue, shop.goals[position]

  def _make_shop(self, split: str, number: int) -> Shop:
    seed = f"{split}/{number}/{self._catalogue_size}"
    if self._difficulty.makes_families:
      return self._make_shop_of_families(
        random.Random(f"families/{seed}"), split
      )
    rng = random.Random(seed)
    catalogue = Catalogue(
      make_products(rng, split, self._catalogue_size, self._families)
    )
    goals: dict[str, Goal] = {}  # by wish: no two of a shop are alike
    while len(goals) < self._tasks_per_catalogue:
      goal = draw(
        lambda: _make_shown_goal(
          rng, catalogue, paraphrase=self._difficulty.paraphrases
        ),
        lambda goal: (
          wish_of(goal) not in goals
          and split_of(wish_of(goal)) == split
          and split_of(goal.instruction) == split
        ),
      )
      goals[wish_of(goal)] = goal
    return Shop(catalogue, tuple(goals.values()))

  def _make_shop_of_families(self, rng: random.Random, split: str) -> Shop:
    """Families of a few kinds, in a random order, and lone products beside."""
    size = family_size(self._difficulty)
    num_families = self._catalogue_size // size
    num_kinds = min(len(words.KINDS), -(-num_families // FAMILIES_PER_KIND))
    makers = [
      FamilyMaker(
        rng,
        kind,
        split=split,
        difficulty=self._difficulty,
      )
      for kind in rng.sample(words.KINDS, num_kinds)
    ]
    families: list[Family] = []
    for number in range(num_families):
      families.append(makers[number % num_kinds].make(families))
    drafts = [product for family in families for product in family.members]
    while len(drafts) < self._catalogue_size:
      drafts.append(rng.choice(makers).lone(families))
    order = rng.sample(range(len(drafts)), len(drafts))
    named = _named(rng, [drafts[i] for i in order])
    products = dict(zip(order, named, strict=True))
    goals = [
      dataclasses.replace(family.goal, product=products[size * number])
      for number, family in enumerate(families)
    ]
    return Shop(
      Catalogue(named), tuple(rng.sample(goals, self._tasks_per_catalogue))
    )


def _require_room(
  catalogue_size: int, tasks_per_catalogue: int, difficulty: Difficulty
) -> None:
  size = family_size(difficulty)
  least = size * tasks_per_catalogue
  most = size * MAX_FAMILIES_PER_KIND * len(words.KINDS)
  if not least <= catalogue_size <= most:
    raise ConfigError(
      f"webshop catalogue_size={catalogue_size} must be from {least} to {most} "
      f"for tasks_per_catalogue={tasks_per_catalogue} wanted products with "
      f"{size - 1} siblings each; change one of them, or difficulty"
    )


def make_products(
  rng: random.Random,
  split: str,
  size: int,
  families: Sequence[int] = FAMILY_SIZES,
) -> list[Product]:
  """`size` products of a few kinds, whose texts belong to `split`."""
  num_kinds = min(len(words.KINDS), -(-size // PRODUCTS_PER_KIND))
  kinds = rng.sample(words.KINDS, num_kinds)
  drafts = [
    draft
    for i, kind in enumerate(kinds)
    for draft in _make_kind(
      rng, kind, len(range(i, size, num_kinds)), split, families
    )
  ]
  rng.shuffle(drafts)
  return _named(rng, drafts)


def _named(rng: random.Random, drafts: Sequence[Product]) -> list[Product]:
  """The products with ids, drawn without replacement."""
  ids = rng.sample(range(*_id_range(len(drafts))), len(drafts))
  return [
    dataclasses.replace(draft, id=f"b{number}")
    for draft, number in zip(drafts, ids, strict=True)
  ]


def _make_shown_goal(
  rng: random.Random, catalogue: Catalogue, *, paraphrase: bool
) -> Goal:
  """A wish for what a title shows, at the price of the cheapest such product.

  Its dearer siblings are then often above the limit.
  """
  drawn = rng.choice(catalogue.products)
  siblings = [
    product
    for product in catalogue.products
    if (product.query, product.attributes) == (drawn.query, drawn.attributes)
  ]
  cheapest = min(siblings, key=lambda product: product.price)
  return make_goal(
    rng, cheapest, cheapest.attributes[:NUM_SHOWN], paraphrase=paraphrase
  )


def _make_kind(
  rng: random.Random,
  kind: Kind,
  count: int,
  split: str,
  families: Sequence[int],
) -> list[Product]:
  """`count` products of one kind, in families of the sizes given."""
  pool = rng.sample(kind.attributes, 6)
  stock = {g: rng.sample(words.OPTION_VALUES[g], 3) for g in kind.groups}
  products: list[Product] = []
  while len(products) < count:
    attributes = tuple(rng.sample(pool, NUM_SHOWN + 1))
    price = rng.randint(*kind.prices)
    for _ in range(min(rng.choice(families), count - len(products))):
      make = functools.partial(
        _make_product, rng, kind, attributes, stock, float(price)
      )
      products.append(draw(make, lambda p: split_of(p.canonical_text) == split))
      price += rng.randint(15, 45)
  return products


def _make_product(
  rng: random.Random,
  kind: Kind,
  attributes: tuple[str, ...],
  stock: Mapping[str, Sequence[str]],
  price: float,
) -> Product:
  """A listing whose title shows two attributes; its features tell the rest."""
  brand = rng.choice(words.BRANDS)
  return Product(
    id="",
    title=f"{brand} {attributes[0]} {attributes[1]} {kind.query}",
    query=kind.query,
    department=kind.category.partition(" › ")[0],
    category=kind.category,
    attributes=attributes,
    options={group: _some(rng, stock[group]) for group in kind.groups},
    price=price,
    price_tag=f"${price}",
    description=f"a {kind.query} by {brand}",
    features=(f"{attributes[2]}, {attributes[0]}", attributes[1]),
  )


def _some(rng: random.Random, values: Sequence[str]) -> tuple[str, ...]:
  """Two or three of what the shop stocks, in its order."""
  kept = set(rng.sample(values, rng.choice((2, 3, 3, 3))))
  return tuple(value for value in values if value in kept)


def _id_range(size: int) -> tuple[int, int]:
  """As few digits as leave room for twice as many, so that ids are short."""
  digits = len(str(2 * size))
  return 10 ** (digits - 1), 10**digits
