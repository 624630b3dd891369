"""Loads a shop from files of real listings.

Each goal belongs to one split by its text or, as upstream has it, by its
position in the list of goals. All splits share the catalogue, as upstream.
"""

import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.errors import ConfigError
from environments.webshop.listings.products import (
  goals_of,
  read_listings,
  read_product,
  written_instructions,
)
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal

SHUFFLE_SEED = 233  # upstream's
# Positions of the shuffled goals that AgentRL trains on and AgentBench tests.
UPSTREAM_SPLITS = {"train": range(1000, 12000), "test": range(200)}


class Listings:
  """A catalogue from files, and the goals of its products.

  Args:
    products: path of listings or upstream's items, one per line or an array.
    attributes, instructions: paths of upstream's files for its items, or "".
    upstream_splits: split only the goals that people wrote, by upstream's
      positions: 0 to 199 are `test`, 1,000 to 11,999 `train`.
  """

  def __init__(
    self,
    products: str,
    *,
    attributes: str = "",
    instructions: str = "",
    upstream_splits: bool = False,
  ):
    items, goals = [], list[Goal]()
    for place, row in read_listings(
      products, attributes=attributes, instructions=instructions
    ):
      items.append(read_product(place, row))
      if not upstream_splits or written_instructions(row):
        goals += goals_of(row, items[-1])
    self.catalogue = Catalogue(items)
    random.Random(SHUFFLE_SEED).shuffle(goals)
    split_goals = _by_position if upstream_splits else _by_text
    self.goals: Mapping[str, Sequence[Goal]] = split_goals(goals)

  def find(self, split: str, index: int) -> tuple[Catalogue, Goal]:
    return self.catalogue, self.goals[split][index]


def _by_text(goals: Sequence[Goal]) -> dict[str, list[Goal]]:
  """Splits all goals by their texts."""
  splits: dict[str, list[Goal]] = {split: [] for split in SPLITS}
  for goal in goals:
    splits[split_of(goal.instruction)].append(goal)
  return splits


def _by_position(goals: Sequence[Goal]) -> dict[str, Sequence[Goal]]:
  """Splits the written goals by their positions in upstream's order."""
  first = UPSTREAM_SPLITS["train"][0]
  if len(goals) <= first:
    raise ConfigError(
      f"webshop: upstream_splits trains on goals {first} and up, but people "
      f"wrote {len(goals)} for these products; give upstream's "
      "items_human_ins.json as `human_instructions`, or leave "
      "upstream_splits off"
    )
  return {
    split: goals[positions.start : positions.stop]
    for split, positions in UPSTREAM_SPLITS.items()
  }
