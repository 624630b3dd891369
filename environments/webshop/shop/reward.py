"""What a purchase is worth, by WebShop's own formula (arXiv:2207.01206, §3.2).

  reward = r_type (attributes met + options met + [price <= upper])
           / (attributes wanted + options wanted + 1)

Upstream tags nouns with spaCy; `nouns` stands in for it. All else, quirks
included, is as upstream's code has it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from rapidfuzz import fuzz, utils

from environments.webshop.shop.colours import reduce_to_colour
from environments.webshop.shop.nouns import nouns
from environments.webshop.shop.product import Goal, Product

FUZZY_MATCH = 85  # of 100; what matches scores above


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The reward and the shares it is made of, each in [0, 1]."""

  reward: float
  r_type: float
  r_att: float
  r_option: float | None  # None where no option is wanted
  r_price: float

  @property
  def metrics(self) -> Mapping[str, float]:
    """What is reported: upstream's names, and whether all was right."""
    shares = {
      "r_type": self.r_type,
      "r_att": self.r_att,
      "r_price": self.r_price,
    }
    if self.r_option is not None:
      shares["r_option"] = self.r_option
    return {"success": float(self.reward == 1), **shares}


def judge(product: Product, chosen: Collection[str], goal: Goal) -> Verdict:
  """The verdict on buying `product` with the options `chosen`."""
  num_attributes = _num_attributes_met(product, goal.attributes)
  num_options = _num_options_met(chosen, goal.options)
  price_met = product.price <= goal.price_upper
  num_wanted = len(goal.attributes) + len(goal.options) + 1
  r_type = _type_share(product, goal.product)
  met = num_attributes + num_options + price_met
  return Verdict(
    reward=r_type * met / num_wanted,
    r_type=r_type,
    r_att=num_attributes / len(goal.attributes),
    r_option=num_options / len(goal.options) if goal.options else None,
    r_price=float(price_met),
  )


def _type_share(bought: Product, wanted: Product) -> float:
  """Whether it is the kind of thing that was wanted."""
  title_score = _title_score(bought.title, wanted.title)
  if title_score == 0:
    return 0.0
  if title_score < 0.1:
    return 0.1
  shared = _category_parts(bought) & _category_parts(wanted)
  same_kind = bought.query == wanted.query or len(shared) >= 2
  return 1.0 if same_kind or title_score > 0.2 else 0.5


def _title_score(bought: str, wanted: str) -> float:
  """Share of the wanted title's nouns that the bought title has, too."""
  wanted_nouns = nouns(wanted)
  if not wanted_nouns:
    return 0.2
  # Upstream divides distinct shared nouns by all wanted ones, repeats included.
  return len(set(nouns(bought)) & set(wanted_nouns)) / len(wanted_nouns)


def _category_parts(product: Product) -> set[str]:
  return {part.strip() for part in product.category.split("›")}


def _num_attributes_met(product: Product, wanted: Iterable[str]) -> int:
  """Attributes that the product is tagged with, or that its text mentions."""
  texts = (product.title, " ".join(product.features), product.description)
  return sum(
    _matches_any(attribute, product.attributes)
    or any(attribute in text.lower() for text in texts)
    for attribute in wanted
  )


def _num_options_met(chosen: Iterable[str], wanted: Iterable[str]) -> int:
  colours = [reduce_to_colour(value) for value in chosen]
  return sum(_matches_any(reduce_to_colour(v), colours) for v in wanted)


def _matches_any(wanted: str, offered: Iterable[str]) -> bool:
  return any(matches(value, wanted) for value in offered)


def matches(value: str, wanted: str) -> bool:
  """Fuzzily: "x-large" matches "large", as all its words are there."""
  score = fuzz.token_set_ratio(value, wanted, processor=utils.default_process)
  return round(score) > FUZZY_MATCH
