"""Loads a shop from files of real listings.

Small files are read into memory, large ones into a store on disk. Each goal
belongs to one split by its text or, as upstream has it, by its position in the
list of goals. All splits share the catalogue, as upstream.
"""

import dataclasses
import pathlib
import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from agentrl_jax.data.split import SPLITS
from agentrl_jax.errors import ConfigError
from environments.webshop.listings.products import (
  Row,
  goals_of,
  read_listings,
  read_product,
)
from environments.webshop.listings.rows import open_text
from environments.webshop.listings.store import (
  GoalTable,
  default_cache,
  open_store,
)
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product

SHUFFLE_SEED = 233  # upstream's
# Positions of the shuffled goals that AgentRL trains on and AgentBench tests.
UPSTREAM_SPLITS = {"train": range(1000, 12000), "test": range(200)}
IN_MEMORY_BYTES = 16 << 20  # a larger file is stored on disk
GZIP_FACTOR = 8  # approximate compression of listings


@dataclasses.dataclass(frozen=True, eq=False)
class LazyGoals(Sequence[Goal]):
  """Goals of a catalogue, which are made on access."""

  rows: Sequence[Row]
  products: Sequence[Product]
  goal_ids: np.ndarray  # [goals, 2]: position of product, and number

  def __len__(self) -> int:
    return len(self.goal_ids)

  def __getitem__(self, index: int) -> Goal:  # type: ignore[override]
    position, number = map(int, self.goal_ids[index])
    return goals_of(self.rows[position], self.products[position])[number]


class Listings:
  """A catalogue from files, and the goals of its products.

  Args:
    products: path of listings or upstream's items, one per line or an array.
    attributes, instructions: paths of upstream's files for its items, or "".
    cache: folder of stores of large files; "" is the user's cache.
    upstream_splits: split only the goals that people wrote, by upstream's
      positions: 0 to 199 are `test`, 1,000 to 11,999 `train`.
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
    split_goals = _by_position if upstream_splits else _by_text
    self.goals: Mapping[str, Sequence[Goal]] = {
      split: LazyGoals(rows, items, ids)
      for split, ids in split_goals(goals).items()
    }

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    return self.catalogue, self.goals[split][index]


def _is_small(path: pathlib.Path) -> bool:
  factor = GZIP_FACTOR if path.suffix == ".gz" else 1
  return path.stat().st_size * factor <= IN_MEMORY_BYTES


def _read_all(
  listings: Iterable[tuple[str, Row]],
) -> tuple[Sequence[Row], Sequence[Product], np.ndarray]:
  rows, products, goals = [], [], GoalTable()
  for position, (place, row) in enumerate(listings):
    rows.append(row)
    products.append(read_product(place, row))
    goals.add(position, row, products[-1])
  return rows, products, goals.to_array()


def _by_text(goals: np.ndarray) -> dict[str, np.ndarray]:
  """Splits all goals by their texts, each split in upstream's order."""
  ids, split_index = _shuffle(goals)
  return {split: ids[split_index == i] for i, split in enumerate(SPLITS)}


def _by_position(goals: np.ndarray) -> dict[str, np.ndarray]:
  """Splits the written goals by their positions in upstream's order."""
  ids, _ = _shuffle(goals[:, goals[2] == 1])
  first = UPSTREAM_SPLITS["train"][0]
  if len(ids) <= first:
    raise ConfigError(
      f"webshop: upstream_splits trains on goals {first} and up, but people "
      f"wrote {len(ids)} for these products; give upstream's "
      "items_human_ins.json as `human_instructions`, or leave "
      "upstream_splits off"
    )
  return {
    split: ids[positions.start : positions.stop]
    for split, positions in UPSTREAM_SPLITS.items()
  }


def _shuffle(goals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids and indices of splits, in upstream's order."""
  order = list(range(goals.shape[1]))
  random.Random(SHUFFLE_SEED).shuffle(order)
  shuffled = goals[:, np.asarray(order, dtype=np.int64)]
  return shuffled[:2].T, shuffled[3]
