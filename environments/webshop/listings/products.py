"""What one row of a file of listings stands for: a product, and its goals.

A product has the goals that people wrote for it, where there are any, else a
synthetic one made of its attributes, options and price.
"""

import random
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.webshop.generation.goals import (
  draw_price_upper,
  make_goal,
  price_text,
)
from environments.webshop.shop.product import Goal, Product

Row = Mapping[str, Any]

UNKNOWN_PRICE = 100.0  # dollars; upstream's word for a listing without a price


def read_product(place: str, row: Row) -> Product:
  """The product; `place` is where the row stands, for whoever must mend it."""
  try:
    return product_of(row)
  except KeyError as missing:
    raise ConfigError(
      f"{place} has no {missing}; a listing needs asin, query, category, "
      "product_category, Title, Description, BulletPoints, pricing, Price, "
      "Rating, options and Attributes"
    ) from missing


def product_of(row: Row) -> Product:
  """The product of a row that has been read before."""
  return Product(
    id=row["asin"],
    title=row["Title"],
    query=row["query"].lower().strip(),
    department=row["category"],
    category=row["product_category"],
    attributes=tuple(row["Attributes"]),
    options={name: tuple(values) for name, values in row["options"].items()},
    price=_price_of(row),
    price_tag=row["Price"],
    description=row["Description"],
    features=tuple(row["BulletPoints"]),
    rating=row["Rating"],
  )


def goals_of(row: Row, product: Product) -> list[Goal]:
  """The goals people wrote, or else one made up; none without attributes."""
  rng = random.Random(f"goal/{product.id}")
  written = written_in(row)
  if written:
    return [_written_goal(rng, wish, product) for wish in written]
  if product.attributes:
    return [make_goal(rng, product, product.attributes)]
  return []


def written_in(row: Row) -> list[Row]:
  """What people wrote about it; upstream leaves out who wants nothing."""
  return [w for w in row.get("instructions", ()) if w["instruction_attributes"]]


def _price_of(row: Row) -> float:
  """One price; from a range, upstream draws one, and so does this."""
  pricing = row["pricing"]
  if len(pricing) < 2:
    return float(pricing[0]) if pricing else UNKNOWN_PRICE
  return random.Random(row["asin"]).uniform(pricing[0], pricing[1])


def _written_goal(rng: random.Random, wish: Row, product: Product) -> Goal:
  upper = draw_price_upper(rng, product.price)
  return Goal(
    instruction=wish["instruction"].strip(".") + price_text(upper),
    product=product,
    attributes=tuple(wish["instruction_attributes"]),
    options=tuple(wish["instruction_options"]),
    price_upper=upper,
  )
