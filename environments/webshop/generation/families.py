"""A wanted product and the siblings that are made against it.

Every sibling misses the wish by exactly one thing, and shares with the wanted
product all that a search reads: a missing option is named in the description
("large sold out"), and what is too dear or lacks an attribute offers all wanted
options. Siblings that miss by an option or an attribute may well be cheaper.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.data.split import split_of
from environments.webshop.generation import words
from environments.webshop.generation.difficulty import Difficulty
from environments.webshop.generation.drawing import draw
from environments.webshop.generation.goals import make_goal, wish_of
from environments.webshop.generation.words import Kind
from environments.webshop.shop.product import Goal, Product

NUM_WITHOUT_OPTION = 3
NUM_WITHOUT_ATTRIBUTE = 3
NUM_TOO_DEAR = 3
NUM_SHOWN = 2  # attributes that a title shows; one more is in the features
NUM_STOCKED, NUM_OFFERED = 4, 3  # values of a group, by a kind, by a product
MIN_PRICE = 2  # dollars
SIBLING_DRAWS = 40  # for one; then another wish is drawn
CHEAPER, DEARER = 20, 40  # dollars that a sibling may cost less, or too much

Options = Mapping[str, tuple[str, ...]]


def family_size(difficulty: Difficulty) -> int:
  """Products of a family, the wanted one included."""
  near = NUM_WITHOUT_OPTION + NUM_WITHOUT_ATTRIBUTE
  return 1 + near * difficulty.siblings + NUM_TOO_DEAR * difficulty.prices


@dataclasses.dataclass(frozen=True)
class Family:
  """A wish; `members[0]` is its product, the others miss it by one thing."""

  goal: Goal
  members: tuple[Product, ...]


class FamilyMaker:
  """Draws families of one kind, whose texts belong to one split."""

  def __init__(
    self,
    rng: random.Random,
    kind: Kind,
    *,
    split: str,
    difficulty: Difficulty,
  ):
    self._rng, self._kind, self._split = rng, kind, split
    self._difficulty = difficulty
    # All of them: with few, families run out of pairs that tell them apart.
    self._pool = kind.attributes
    self._stock = {
      g: rng.sample(words.OPTION_VALUES[g], NUM_STOCKED) for g in kind.groups
    }

  def make(self, others: Sequence[Family]) -> Family:
    """A family beside others: each wish is met by its own product alone."""
    family = None
    while family is None:
      goal = self._draw_goal(others)
      family = self._try_family(goal, others)
    return family

  def lone(self, others: Sequence[Family]) -> Product:
    """A product that belongs to no family, and fulfils no wish."""
    return draw(
      lambda: self._product(self._attributes(), {}),
      lambda product: self._is_apart(product, others),
    )

  def _is_apart(self, product: Product, others: Sequence[Family]) -> bool:
    """Whether it belongs to the split, and to no other wish's results."""
    return split_of(product.canonical_text) == self._split and not any(
      fulfils(product, other.goal)
      or _shown_of(product) == _shown_of(other.goal.product)
      for other in others
    )

  def _draw_goal(self, others: Sequence[Family]) -> Goal:
    """A wish of the split, for attributes that no title shows yet."""
    taken = {_shown_of(member) for other in others for member in other.members}
    return draw(
      self._make_goal,
      lambda goal: (
        _shown_of(goal.product) not in taken
        and split_of(wish_of(goal)) == self._split
        and split_of(goal.instruction) == self._split
        and self._is_apart(goal.product, others)
        and not any(fulfils(m, goal) for o in others for m in o.members)
      ),
    )

  def _make_goal(self) -> Goal:
    """A wish for all that a title shows: with less, too much would do."""
    product = self._product(self._attributes(), {})
    return make_goal(
      self._rng,
      product,
      product.attributes[:NUM_SHOWN],
      num_wanted=(NUM_SHOWN,),
      paraphrase=self._difficulty.paraphrases,
    )

  def _try_family(self, goal: Goal, others: Sequence[Family]) -> Family | None:
    """The family of a wish; None if its siblings would fulfil another."""
    members = [goal.product]
    for make in self._makers(goal):
      drawn = (make() for _ in range(SIBLING_DRAWS))
      fit = next((p for p in drawn if self._is_apart(p, others)), None)
      if fit is None:
        return None
      members.append(fit)
    return Family(goal, tuple(members))

  def _makers(self, goal: Goal) -> list[Callable[[], Product]]:
    """What draws each of the siblings."""
    makers: list[Callable[[], Product]] = []
    if self._difficulty.siblings:
      makers += [lambda: self._without_option(goal)] * NUM_WITHOUT_OPTION
      makers += [lambda: self._without_attribute(goal)] * NUM_WITHOUT_ATTRIBUTE
    if self._difficulty.prices:
      makers += [lambda: self._too_dear(goal)] * NUM_TOO_DEAR
    return makers

  def _without_option(self, goal: Goal) -> Product:
    """Lacks one wanted option and says so where only a search looks."""
    wanted = _wanted_of(goal)
    missing = self._rng.choice(list(wanted))
    offered = {group: v for group, v in wanted.items() if group != missing}
    return self._product(
      goal.product.attributes,
      offered,
      lacks={missing: wanted[missing]},
      price=self._low_price(goal),
    )

  def _without_attribute(self, goal: Goal) -> Product:
    """Has another attribute in the place of a wanted one."""
    own = goal.product.attributes
    lost = self._rng.choice(goal.attributes)
    other = self._rng.choice([a for a in self._pool if a not in own])
    attributes = tuple(other if a == lost else a for a in own)
    return self._product(
      attributes, _wanted_of(goal), price=self._low_price(goal)
    )

  def _too_dear(self, goal: Goal) -> Product:
    price = int(goal.price_upper) + self._rng.randint(1, DEARER)
    return self._product(
      goal.product.attributes, _wanted_of(goal), price=float(price)
    )

  def _low_price(self, goal: Goal) -> float:
    lowest = max(MIN_PRICE, int(goal.product.price) - CHEAPER)
    return float(self._rng.randint(lowest, int(goal.price_upper) - 1))

  def _attributes(self) -> tuple[str, ...]:
    return tuple(self._rng.sample(self._pool, NUM_SHOWN + 1))

  def _product(
    self,
    attributes: Sequence[str],
    offered: Mapping[str, str],
    *,
    lacks: Mapping[str, str] | None = None,
    price: float | None = None,
  ) -> Product:
    """A listing with these options among others, and one that is sold out."""
    kind, rng = self._kind, self._rng
    options = {
      group: self._some(group, offered.get(group), (lacks or {}).get(group))
      for group in kind.groups
    }
    sold_out = next(iter((lacks or {}).values()), None) or self._sold_out(
      options
    )
    if price is None:
      price = float(rng.randint(*kind.prices))
    brand = rng.choice(words.BRANDS)
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
      description=f"a {kind.query} by {brand}, {sold_out} sold out",
      features=(f"{attributes[2]}, {attributes[0]}", attributes[1]),
    )

  def _some(
    self, group: str, kept: str | None, lacked: str | None
  ) -> tuple[str, ...]:
    """Some of the group's values, in its order."""
    values = [v for v in words.OPTION_VALUES[group] if v != lacked]
    stock = [v for v in self._stock[group] if v not in (lacked, kept)]
    chosen = set(self._rng.sample(stock, NUM_OFFERED - (kept is not None)))
    return tuple(v for v in values if v in chosen or v == kept)

  def _sold_out(self, options: Options) -> str:
    """A value of the last group that is not offered."""
    group = list(options)[-1]
    return self._rng.choice(
      [v for v in words.OPTION_VALUES[group] if v not in options[group]]
    )


def _shown_of(product: Product) -> tuple[str, frozenset[str]]:
  """The kind and the attributes that a title shows."""
  return product.query, frozenset(product.attributes[:NUM_SHOWN])


def fulfils(product: Product, goal: Goal) -> bool:
  """Whether the product can be bought so that all of the wish is met.

  For generated listings, whose words match exactly or not at all; `reward` is
  the judge of any.
  """
  return (
    product.query == goal.product.query
    and set(goal.attributes) <= set(product.attributes)
    and all(
      value in product.options[g] for g, value in _wanted_of(goal).items()
    )
    and product.price <= goal.price_upper
  )


def _wanted_of(goal: Goal) -> dict[str, str]:
  """The wanted value of each group of options."""
  groups = [group for group, values in goal.product.options.items() if values]
  return dict(zip(groups, goal.options, strict=True))
