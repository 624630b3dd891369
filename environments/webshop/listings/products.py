"""Reads listings and makes products and goals of them.

A listing is a row of our form, or an item of upstream's files:
`items_shuffle.json` is an array of items, `items_ins_v2.json` has the
attributes of each, and `items_human_ins.json` the instructions that people
wrote. Items become rows by the rules of WebShop's loader.

A product has the goals that people wrote for it, if there are any, and else a
synthetic one made of its attributes, options and price.
"""

import decimal
import pathlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.webshop.generation.goals import (
  draw_price_upper,
  make_goal,
  price_text,
)
from environments.webshop.listings.rows import read_members, read_rows
from environments.webshop.shop.product import Goal, Product

Row = Mapping[str, Any]

UNKNOWN_PRICE = 100.0  # dollars; upstream's, for a listing without a price
MAX_ID = 10  # characters; upstream skips items with longer ids
_ITEM_ERRORS = (KeyError, TypeError, AttributeError, decimal.InvalidOperation)
_NOT_PRICE = re.compile(r"[^\d.]")


def read_listings(
  products: str, *, attributes: str = "", instructions: str = ""
) -> Iterator[tuple[str, Row]]:
  """Yields the place of each listing in the file, and its row."""
  tags = _read_tags(attributes)
  written = _read_instructions(instructions)
  seen: set[str] = set()
  for place, row in read_rows(pathlib.Path(products)):
    if "full_description" not in row:
      yield place, row
      continue
    asin = str(row["asin"])
    if asin == "nan" or len(asin) > MAX_ID or asin in seen:
      continue
    seen.add(asin)
    try:
      yield place, _row_of(row, tags.get(asin), written.get(asin))
    except _ITEM_ERRORS as error:
      raise ConfigError(
        f"{place} is not one of WebShop's items ({error!r}); it needs asin, "
        "name, category, query, product_category, full_description, "
        "small_description, pricing and customization_options"
      ) from error


def _read_tags(path: str) -> dict[str, tuple[str, ...]]:
  if not path:
    return {}
  return {
    asin: tuple(entry["attributes"])
    for asin, entry in read_members(pathlib.Path(path)).items()
    if "attributes" in entry
  }


def _read_instructions(path: str) -> dict[str, list[Row]]:
  if not path:
    return {}
  keys = ("instruction", "instruction_attributes", "instruction_options")
  return {
    asin: [{key: entry[key] for key in keys} for entry in entries]
    for asin, entries in read_members(pathlib.Path(path)).items()
  }


def _row_of(
  item: Row, tags: Sequence[str] | None, written: Sequence[Row] | None
) -> Row:
  features = item["small_description"]
  price_tag, pricing = _prices(item.get("pricing"))
  return {
    "asin": item["asin"],
    "category": item["category"],
    "query": item["query"],
    "product_category": item["product_category"],
    "Title": item["name"],
    "Description": item["full_description"] or "",
    "BulletPoints": features if isinstance(features, list) else [features],
    "pricing": pricing,
    "Price": price_tag,
    "Rating": "N.A.",
    "options": _options(item["customization_options"] or {}),
    "Attributes": tags or (),
    "instructions": written or (),
  }


def _prices(text: str | None) -> tuple[str, tuple[float, ...]]:
  """Returns the price tag, and one price or the two ends of a range."""
  prices = [
    float(decimal.Decimal(_NOT_PRICE.sub("", part)))
    for part in (text or "").split("$")[1:]
  ] or [UNKNOWN_PRICE]
  return " to ".join(f"${price}" for price in prices[:2]), tuple(prices[:2])


def _options(
  groups: Mapping[str, Iterable[Mapping[str, str]] | None],
) -> dict[str, list[str]]:
  return {
    name.lower(): [
      value["value"].strip().replace("/", " | ").lower() for value in values
    ]
    for name, values in groups.items()
    if values is not None
  }


def read_product(place: str, row: Row) -> Product:
  """Makes the product of a row; errors name its `place` in the file."""
  try:
    return product_of(row)
  except KeyError as missing:
    raise ConfigError(
      f"{place} has no {missing}; a listing needs asin, query, category, "
      "product_category, Title, Description, BulletPoints, pricing, Price, "
      "Rating, options and Attributes"
    ) from missing


def product_of(row: Row) -> Product:
  """Makes the product of a row that is known to be complete."""
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
  """Returns the written goals, or a synthetic one if there are attributes."""
  rng = random.Random(f"goal/{product.id}")
  written = written_instructions(row)
  if written:
    return [_written_goal(rng, entry, product) for entry in written]
  if product.attributes:
    return [make_goal(rng, product, product.attributes)]
  return []


def written_instructions(row: Row) -> list[Row]:
  """Returns the instructions that people wrote and that name attributes."""
  return [w for w in row.get("instructions", ()) if w["instruction_attributes"]]


def _price_of(row: Row) -> float:
  """Returns the price, or draws one of a range as upstream does."""
  pricing = row["pricing"]
  if len(pricing) < 2:
    return float(pricing[0]) if pricing else UNKNOWN_PRICE
  return random.Random(row["asin"]).uniform(pricing[0], pricing[1])


def _written_goal(rng: random.Random, written: Row, product: Product) -> Goal:
  upper = draw_price_upper(rng, product.price)
  return Goal(
    instruction=written["instruction"].strip(".") + price_text(upper),
    product=product,
    attributes=tuple(written["instruction_attributes"]),
    options=tuple(written["instruction_options"]),
    price_upper=upper,
  )
