"""Shops made from files of real listings.

The files are not ours to ship: their texts are the sellers'. Small ones are
read into memory, large ones into a store on disk. Every goal belongs to one
split by its text, or, as upstream has it, by its place in the list of goals;
the catalogue is the same for all splits, as it is upstream.
"""

import pathlib
import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from agentrl_jax.data.split import SPLITS
from agentrl_jax.errors import ConfigError
from environments.webshop.listings.items import read_listings
from environments.webshop.listings.products import Row, goals_of, read_product
from environments.webshop.listings.rows import open_text
from environments.webshop.listings.store import (
  GoalList,
  default_cache,
  open_store,
)
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product

SHUFFLE_SEED = 233  # upstream's
# Which of the shuffled goals AgentBench plays, and which AgentRL trains on.
UPSTREAM_SPLITS = {"train": range(1000, 12000), "test": range(200)}
IN_MEMORY_BYTES = 16 << 20  # a larger file goes to disk
GZIP_FACTOR = 8  # by which packed listings grow, more or less


class Goals(Sequence[Goal]):
  """Some of the goals of a catalogue, made when they are asked for."""

  def __init__(
    self,
    rows: Sequence[Row],
    products: Sequence[Product],
    places: np.ndarray,
  ):
    self._rows = rows
    self._products = products
    self._places = places  # [goals, 2]: position and number

  def __len__(self) -> int:
    return len(self._places)

  def __getitem__(self, index: int) -> Goal:  # type: ignore[override]
    position, number = map(int, self._places[index])
    return goals_of(self._rows[position], self._products[position])[number]


class Listings:
  """One catalogue from files, and the goals for its products.

  Args:
    products: listings, one object per line or an array; upstream's items too.
    attributes, instructions: upstream's files beside its items, or nothing.
    cache: where stores of large files are kept; nothing is the user's cache.
    upstream_splits: goals as upstream counts them, those that people wrote
      alone: 0 to 199 are `test`, 1,000 to 11,999 `train`.
  """

  def __init__(
    self,
    products: str,
    *,
    attributes: str = "",
    instructions: str = "",
    cache: str = "",
    upstream_splits: bool = False,
  ):
    sources = [
      pathlib.Path(path)
      for path in (products, attributes, instructions)
      if path
    ]
    for source in sources:
      open_text(source).close()
    listings = read_listings(
      products, attributes=attributes, instructions=instructions
    )
    if _is_small(sources[0]):
      rows, items, goals = _read_all(listings)
      self.catalogue = Catalogue(items)
    else:
      folder = pathlib.Path(cache) if cache else default_cache()
      stored = open_store(folder, sources, listings)
      rows, items, goals = stored.rows, stored.products, stored.goals
      self.catalogue = stored
    splits = _as_upstream(goals) if upstream_splits else _by_text(goals)
    self.goals: Mapping[str, Sequence[Goal]] = {
      split: Goals(rows, items, places) for split, places in splits.items()
    }

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    """The shop and the wish of one task."""
    return self.catalogue, self.goals[split][index]


def _is_small(path: pathlib.Path) -> bool:
  factor = GZIP_FACTOR if path.suffix == ".gz" else 1
  return path.stat().st_size * factor <= IN_MEMORY_BYTES


def _read_all(
  listings: Iterable[tuple[str, Row]],
) -> tuple[Sequence[Row], Sequence[Product], np.ndarray]:
  rows, products, goals = [], [], GoalList()
  for position, (place, row) in enumerate(listings):
    rows.append(row)
    products.append(read_product(place, row))
    goals.add(position, row, products[-1])
  return rows, products, goals.table()


def _by_text(goals: np.ndarray) -> dict[str, np.ndarray]:
  """All goals in upstream's order, each in the split that owns its text."""
  places, side = _shuffled(goals)
  return {split: places[side == i] for i, split in enumerate(SPLITS)}


def _as_upstream(goals: np.ndarray) -> dict[str, np.ndarray]:
  """The goals that people wrote, by their place in upstream's order."""
  places, _ = _shuffled(goals[:, goals[2] == 1])
  first = UPSTREAM_SPLITS["train"][0]
  if len(places) <= first:
    raise ConfigError(
      f"webshop: upstream_splits trains on goals {first} and up, but people "
      f"wrote {len(places)} for these products; give upstream's "
      "items_human_ins.json as `instructions`, or leave upstream_splits off"
    )
  return {
    split: places[places_of.start : places_of.stop]
    for split, places_of in UPSTREAM_SPLITS.items()
  }


def _shuffled(goals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  order = list(range(goals.shape[1]))
  random.Random(SHUFFLE_SEED).shuffle(order)
  shuffled = goals[:, np.asarray(order, dtype=np.int64)]
  return shuffled[:2].T, shuffled[3]
