"""Goals with instructions in the form of upstream's synthetic ones.

"i need slim fit shirt with color: red, and size: large, and price lower than
40.00 dollars": the part before "with" is generated, where upstream has one text
per product; options and price are in upstream's words.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence

from environments.webshop.generation.words import PARAPHRASES
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
  """Draws a goal that `product` satisfies, with some of `attributes`.

  Args:
    num_wanted: numbers of attributes to draw from.
    paraphrase: whether attributes are worded differently from listings.
  """
  num_attributes = min(rng.choice(num_wanted), len(attributes))
  wanted = tuple(rng.sample(attributes, num_attributes))
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
  """Draws two of the next four tens above `price`, and returns the larger.

  Returns infinity if there are fewer than two such tens.
  """
  above = [step for step in PRICE_STEPS if step > price][:4]
  return max(rng.sample(above, 2)) if len(above) >= 2 else math.inf


def option_text(chosen: Mapping[str, str]) -> str:
  """Writes the part of an instruction that names options."""
  named = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
  return f" with {named}" if named else ""


def price_text(price_upper: float) -> str:
  """Writes the part of an instruction that names the limit, if any."""
  if math.isinf(price_upper):
    return ""
  return f", and price lower than {price_upper:.2f} dollars"


def canonical_goal(goal: Goal) -> str:
  """Writes kind, attributes and options, independent of wording and price."""
  attributes = ", ".join(sorted(goal.attributes))
  return f"{goal.product.query}: {attributes}; {', '.join(goal.options)}"
