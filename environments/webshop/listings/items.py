"""Upstream's own files: items as scraped, wishes as people wrote them.

`items_shuffle.json` is an array of items, `items_ins_v2.json` has the
attributes of each, `items_human_ins.json` the instructions that people wrote.
This makes the rows of `listings` of them, by the rules of WebShop's loader.
"""

import decimal
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.webshop.listings.rows import read_members, read_rows

Row = Mapping[str, Any]

MAX_ID = 10  # characters; items with longer ids are left out, as upstream
NO_PRICE = ("$100.0", (100.0,))  # upstream's, for an item without a price
_UNREADABLE = (KeyError, TypeError, AttributeError, decimal.InvalidOperation)
_NOT_OF_A_PRICE = re.compile(r"[^\d.]")


def read_listings(
  products: str, *, attributes: str = "", instructions: str = ""
) -> Iterator[tuple[str, Row]]:
  """Where each listing stands, and the listing; upstream's items made rows."""
  tags = _read_tags(attributes)
  wishes = _read_wishes(instructions)
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
      yield place, _row_of(row, tags.get(asin), wishes.get(asin))
    except _UNREADABLE as error:
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
    for asin, entry in read_members(pathlib.Path(path))
    if "attributes" in entry
  }


def _read_wishes(path: str) -> dict[str, list[Row]]:
  if not path:
    return {}
  wanted = ("instruction", "instruction_attributes", "instruction_options")
  return {
    asin: [{key: wish[key] for key in wanted} for wish in entries]
    for asin, entries in read_members(pathlib.Path(path))
  }


def _row_of(
  item: Row, tags: Sequence[str] | None, wishes: Sequence[Row] | None
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
    "instructions": wishes or (),
  }


def _prices(text: str | None) -> tuple[str, tuple[float, ...]]:
  """What the page says, and one price or the two ends of a range."""
  if not text:
    return NO_PRICE
  found = [
    float(decimal.Decimal(_NOT_OF_A_PRICE.sub("", part)))
    for part in text.split("$")[1:]
  ]
  if not found:
    return NO_PRICE
  if len(found) == 1:
    return f"${found[0]}", tuple(found)
  return f"${found[0]} to ${found[1]}", tuple(found[:2])


def _options(
  groups: Mapping[str, Iterable[Mapping[str, str]] | None],
) -> dict[str, list[str]]:
  """Values by group, as the page shows them."""
  return {
    name.lower(): [
      value["value"].strip().replace("/", " | ").lower() for value in values
    ]
    for name, values in groups.items()
    if values is not None
  }
