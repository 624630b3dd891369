"""Shops made from files of real listings, one JSON object per line.

The files are not ours to ship: their texts are the sellers'. A product has the
goal that a person wrote for it, where there is one, else a synthetic one made
of its attributes, options and price. Every goal belongs to one split by its
text; the catalogue is the same for both, as it is upstream.
"""

import json
import pathlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.catalogue import Catalogue
from environments.webshop.goals import draw_price_upper, make_goal, price_text
from environments.webshop.product import Goal, Product

UNKNOWN_PRICE = 100.0  # dollars; upstream's word for a listing without a price
SHUFFLE_SEED = 233  # upstream's


class Listings:
  """One catalogue from a file, and the goals for its products."""

  def __init__(self, path: str):
    rows = _read_rows(pathlib.Path(path))
    products = [
      _read_product(path, number, row) for number, row in enumerate(rows, 1)
    ]
    self.catalogue = Catalogue(products)
    goals = [
      goal
      for row, product in zip(rows, products, strict=True)
      for goal in _goals_of(row, product)
    ]
    random.Random(SHUFFLE_SEED).shuffle(goals)
    self.goals: Mapping[str, Sequence[Goal]] = {
      split: [g for g in goals if split_of(g.instruction) == split]
      for split in SPLITS
    }

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    """The shop and the wish of one task."""
    return self.catalogue, self.goals[split][index]


def _read_rows(path: pathlib.Path) -> list[Mapping[str, Any]]:
  if not path.is_file():
    raise ConfigError(
      f"webshop.products={str(path)!r} is no file; give a file with one "
      "listing per line as JSON, or leave it out to have shops generated"
    )
  with path.open(encoding="utf-8") as lines:
    return [_read_row(path, n, line) for n, line in enumerate(lines, 1)]


def _read_row(path: pathlib.Path, number: int, line: str) -> Mapping[str, Any]:
  try:
    row = json.loads(line)
  except ValueError as error:
    raise ConfigError(f"{path}:{number} is not JSON: {error}") from error
  if not isinstance(row, dict):
    raise ConfigError(f"{path}:{number} is no JSON object, but {line[:40]!r}")
  return row


def _read_product(path: str, line: int, row: Mapping[str, Any]) -> Product:
  try:
    return _product_of(row)
  except KeyError as missing:
    raise ConfigError(
      f"{path}:{line} has no {missing}; a listing needs asin, query, category, "
      "product_category, Title, Description, BulletPoints, pricing, Price, "
      "Rating, options and Attributes"
    ) from missing


def _product_of(row: Mapping[str, Any]) -> Product:
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


def _price_of(row: Mapping[str, Any]) -> float:
  """One price; from a range, upstream draws one, and so does this."""
  pricing = row["pricing"]
  if len(pricing) < 2:
    return float(pricing[0]) if pricing else UNKNOWN_PRICE
  return random.Random(row["asin"]).uniform(pricing[0], pricing[1])


def _goals_of(row: Mapping[str, Any], product: Product) -> Iterable[Goal]:
  """The goals people wrote, or else one made up; none without attributes."""
  rng = random.Random(f"goal/{product.id}")
  written = [
    w for w in row.get("instructions", ()) if w["instruction_attributes"]
  ]
  if written:
    return [_written_goal(rng, wish, product) for wish in written]
  return (
    [make_goal(rng, product, product.attributes)] if product.attributes else []
  )


def _written_goal(
  rng: random.Random, wish: Mapping[str, Any], product: Product
) -> Goal:
  upper = draw_price_upper(rng, product.price)
  return Goal(
    instruction=wish["instruction"].strip(".") + price_text(upper),
    product=product,
    attributes=tuple(wish["instruction_attributes"]),
    options=tuple(wish["instruction_options"]),
    price_upper=upper,
  )
