"""Wishes, worded as upstream's synthetic goals are.

"i need slim fit shirt with color: red, and size: large, and price lower than
40.00 dollars": the part before "with" is made up here, where upstream has a
text per product; options and price are in upstream's words.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence

from environments.webshop.generation.paraphrases import PARAPHRASES
from environments.webshop.shop.product import Goal, Product

PRICE_STEPS = [10.0 * i for i in range(1, 100)]  # dollars
OPENINGS = (
  "i need",
  "i want",
  "i am looking for",
  "i'm looking for",
  "find me",
  "i would like",
  "please find",
  "show me",
)
PHRASES: tuple[Callable[[str, str], str], ...] = (
  lambda attributes, query: f"{attributes} {query}",
  lambda attributes, query: f"{query} that is {attributes}",
  lambda attributes, query: f"{query}, {attributes}",
)


def make_goal(
  rng: random.Random,
  product: Product,
  attributes: Sequence[str],
  *,
  num_wanted: Sequence[int] = (1, 2, 2),
  paraphrase: bool = False,
) -> Goal:
  """A wish that `product` fulfils, for some of `attributes`.

  Args:
    num_wanted: how many attributes may be asked for, drawn from.
    paraphrase: whether they are said in other words than listings have.
  """
  wanted_count = min(rng.choice(num_wanted), len(attributes))
  wanted = tuple(rng.sample(attributes, wanted_count))
  chosen = {name: rng.choice(vs) for name, vs in product.options.items() if vs}
  upper = draw_price_upper(rng, product.price)
  if paraphrase:
    clauses = " and ".join(rng.choice(PARAPHRASES[a]) for a in wanted)
    phrase = f"{product.query} that {clauses}"
  else:
    phrase = rng.choice(PHRASES)(" and ".join(wanted), product.query)
  start = f"{rng.choice(OPENINGS)} {phrase}"
  return Goal(
    instruction=f"{start}{option_text(chosen)}{price_text(upper)}",
    product=product,
    attributes=wanted,
    options=tuple(chosen.values()),
    price_upper=upper,
  )


def draw_price_upper(rng: random.Random, price: float) -> float:
  """The larger of two of the next four tens above `price`; inf if none."""
  above = [step for step in PRICE_STEPS if step > price][:4]
  return max(rng.sample(above, 2)) if len(above) >= 2 else math.inf


def option_text(chosen: Mapping[str, str]) -> str:
  """The part of an instruction that names options."""
  named = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
  return f" with {named}" if named else ""


def price_text(price_upper: float) -> str:
  """The part of an instruction that names the limit, if there is one."""
  if math.isinf(price_upper):
    return ""
  return f", and price lower than {price_upper:.2f} dollars"


def wish_of(goal: Goal) -> str:
  """What is wanted, however it is put: kind, attributes, options; no price."""
  attributes = ", ".join(sorted(goal.attributes))
  return f"{goal.product.query}: {attributes}; {', '.join(goal.options)}"
