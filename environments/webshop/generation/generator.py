"""Generates shops and goals as pure functions of (split, index).

Several tasks share one catalogue. In an easy shop, products of one kind share
some or all of their attributes, and differ in price and options. In shops with
siblings or prices, each wanted product has siblings (see `families`), and no
other product satisfies its goal. A title has all attributes of a goal, so the
right click never depends on luck.

No listing, goal or instruction belongs to two splits: each is drawn again until
`split_of` its text is the right split.
"""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.split import split_of
from agentrl_jax.env.options import require_one_of
from agentrl_jax.errors import ConfigError
from environments.options import WebShopOptions
from environments.webshop.generation import words
from environments.webshop.generation.families import (
  DIFFICULTIES,
  NUM_SHOWN,
  Difficulty,
  FamilyMaker,
  ProductFamily,
  draw,
  make_product,
)
from environments.webshop.generation.goals import canonical_goal, make_goal
from environments.webshop.generation.words import Kind
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product

PRODUCTS_PER_KIND = 10
MAX_FAMILIES_PER_KIND = 4  # more would run out of distinct attributes
FAMILIES_PER_KIND = 3  # in shops with siblings or prices
FAMILY_SIZES = (1, 1, 2, 3)  # in other shops, to draw from


@dataclasses.dataclass(frozen=True)
class Shop:
  """A catalogue and the goals that are played in it."""

  catalogue: Catalogue
  goals: tuple[Goal, ...]


class ShopGenerator:
  """Generates shops, and caches them."""

  def __init__(self, options: WebShopOptions):
    self._options = options
    require_one_of(DIFFICULTIES, difficulty=options.difficulty)
    self._obstacles = DIFFICULTIES[options.difficulty]
    if self._obstacles.has_families:
      _require_room(options, self._obstacles)
    self.shop = functools.lru_cache(options.num_cached)(self._make_shop)

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    number, position = divmod(index, self._options.tasks_per_catalogue)
    shop: Shop = self.shop(split, number)
    return shop.catalogue, shop.goals[position]

  def _make_shop(self, split: str, number: int) -> Shop:
    seed = f"{split}/{number}/{self._options.catalogue_size}"
    if self._obstacles.has_families:
      return self._make_shop_of_families(
        random.Random(f"families/{seed}"), split
      )
    rng = random.Random(seed)
    sizes = [
      size for size in FAMILY_SIZES if size <= self._options.max_siblings
    ]
    catalogue = Catalogue(
      make_products(rng, split, self._options.catalogue_size, sizes)
    )
    goals: dict[str, Goal] = {}  # by content, which is unique in a shop
    while len(goals) < self._options.tasks_per_catalogue:
      goal = draw(
        lambda: _draw_goal(
          rng, catalogue, paraphrase=self._obstacles.paraphrases
        ),
        lambda goal: (
          canonical_goal(goal) not in goals
          and split_of(canonical_goal(goal)) == split
          and split_of(goal.instruction) == split
        ),
      )
      goals[canonical_goal(goal)] = goal
    return Shop(catalogue, tuple(goals.values()))

  def _make_shop_of_families(self, rng: random.Random, split: str) -> Shop:
    """Draws families of a few kinds and single products, and shuffles them."""
    size = self._obstacles.family_size
    num_families = self._options.catalogue_size // size
    num_kinds = min(len(words.KINDS), -(-num_families // FAMILIES_PER_KIND))
    makers = [
      FamilyMaker(rng=rng, kind=kind, split=split, difficulty=self._obstacles)
      for kind in rng.sample(words.KINDS, num_kinds)
    ]
    families: list[ProductFamily] = []
    for number in range(num_families):
      families.append(makers[number % num_kinds].make(families))
    drafts = [product for family in families for product in family.members]
    while len(drafts) < self._options.catalogue_size:
      drafts.append(rng.choice(makers).make_single(families))
    order = rng.sample(range(len(drafts)), len(drafts))
    listed = _with_ids(rng, [drafts[i] for i in order])
    products = dict(zip(order, listed, strict=True))
    goals = [
      dataclasses.replace(family.goal, product=products[size * number])
      for number, family in enumerate(families)
    ]
    return Shop(
      Catalogue(listed),
      tuple(rng.sample(goals, self._options.tasks_per_catalogue)),
    )


def _require_room(options: WebShopOptions, difficulty: Difficulty) -> None:
  catalogue_size = options.catalogue_size
  tasks_per_catalogue = options.tasks_per_catalogue
  size = difficulty.family_size
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
  family_sizes: Sequence[int] = FAMILY_SIZES,
) -> list[Product]:
  """Draws `size` products of a few kinds, with texts of `split`."""
  num_kinds = min(len(words.KINDS), -(-size // PRODUCTS_PER_KIND))
  kinds = rng.sample(words.KINDS, num_kinds)
  drafts = [
    draft
    for i, kind in enumerate(kinds)
    for draft in _draw_kind(
      rng, kind, len(range(i, size, num_kinds)), split, family_sizes
    )
  ]
  rng.shuffle(drafts)
  return _with_ids(rng, drafts)


def _with_ids(rng: random.Random, drafts: Sequence[Product]) -> list[Product]:
  """Draws ids, which have as few digits as allow twice as many products."""
  digits = len(str(2 * len(drafts)))
  ids = rng.sample(range(10 ** (digits - 1), 10**digits), len(drafts))
  return [
    dataclasses.replace(draft, id=f"b{number}")
    for draft, number in zip(drafts, ids, strict=True)
  ]


def _draw_goal(
  rng: random.Random, catalogue: Catalogue, *, paraphrase: bool
) -> Goal:
  """Draws a goal whose product is the cheapest of those with its attributes.

  More expensive ones are then often above the price limit.
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


def _draw_kind(
  rng: random.Random,
  kind: Kind,
  count: int,
  split: str,
  family_sizes: Sequence[int],
) -> list[Product]:
  """Draws `count` products of one kind, in families of the given sizes."""
  pool = rng.sample(kind.attributes, 6)
  stock = {g: rng.sample(words.OPTION_VALUES[g], 3) for g in kind.groups}
  products: list[Product] = []
  while len(products) < count:
    attributes = tuple(rng.sample(pool, NUM_SHOWN + 1))
    price = rng.randint(*kind.prices)
    for _ in range(min(rng.choice(family_sizes), count - len(products))):
      make = functools.partial(
        _draw_product, rng, kind, attributes, stock, float(price)
      )
      products.append(draw(make, lambda p: split_of(p.canonical_text) == split))
      price += rng.randint(15, 45)
  return products


def _draw_product(
  rng: random.Random,
  kind: Kind,
  attributes: tuple[str, ...],
  stock: Mapping[str, Sequence[str]],
  price: float,
) -> Product:
  brand = rng.choice(words.BRANDS)
  options = {group: _draw_values(rng, stock[group]) for group in kind.groups}
  return make_product(kind, brand, attributes, options, price)


def _draw_values(rng: random.Random, stock: Sequence[str]) -> tuple[str, ...]:
  drawn = set(rng.sample(stock, rng.choice((2, 3, 3, 3))))
  return tuple(value for value in stock if value in drawn)
