"""Draws random tables: what they are about, their columns, their cells.

Every cell is text, as in AgentBench. Numbers have one to three digits and
differ within a column, so comparing them as text gives another order: whoever
forgets to cast them is wrong.
"""

import dataclasses
import random
from collections.abc import Sequence

from environments.dbbench.generation import words
from environments.dbbench.generation.statement import Where
from environments.dbbench.problem import Table

MAX_TEXT_CHOICES = 3  # different words in a column of text, so that they repeat


@dataclasses.dataclass(frozen=True)
class Topic:
  """A table, and what its columns hold."""

  table: Table
  plural: str  # what the rows are: "players"
  key: str  # the column that names a row
  texts: tuple[str, ...]
  numbers: tuple[str, ...]
  new_name: str  # fits the key column, and is not in it

  @property
  def canonical(self) -> str:
    """The table as one text, for the line between the splits."""
    lines = (self.table.columns, *self.table.rows)
    return "\n".join([self.table.name, *("|".join(line) for line in lines)])

  def column(self, name: str) -> list[str]:
    """The cells of one column."""
    position = self.table.columns.index(name)
    return [row[position] for row in self.table.rows]

  def where(self, condition: Where | None, name: str) -> list[str]:
    """The cells of one column in the rows that meet the condition."""
    cells = self.column(name)
    if condition is None:
      return cells
    tested = self.column(condition.column)
    return [
      cell
      for cell, other in zip(cells, tested, strict=True)
      if _meets(other, condition)
    ]


def draw_topic(
  rng: random.Random,
  *,
  num_rows: tuple[int, int],
  num_columns: tuple[int, int],
) -> Topic:
  """A random table; both bounds are inclusive."""
  plural = rng.choice(tuple(words.SUBJECTS))
  key, heads, tails = words.SUBJECTS[plural]
  height = rng.randint(*num_rows)
  texts, numbers = _draw_columns(rng, rng.randint(*num_columns) - 1)
  names = _draw_names(rng, heads, tails, height + 1)
  cells = {key: names[1:]}
  for column in texts:
    cells[column] = _draw_texts(rng, words.TEXT_COLUMNS[column], height)
  for column in numbers:
    cells[column] = draw_numbers(rng, height)
  columns = [key, *rng.sample([*texts, *numbers], len(texts) + len(numbers))]
  table = Table(
    name=f"{rng.choice(words.TABLE_MODIFIERS)}_{plural}",
    columns=tuple(columns),
    rows=tuple(zip(*(cells[column] for column in columns), strict=True)),
  )
  return Topic(table, plural, key, tuple(texts), tuple(numbers), names[0])


def draw_numbers(rng: random.Random, count: int) -> list[str]:
  """Different numbers of one to three digits, as many of each as chance has."""
  drawn: dict[str, None] = {}
  while len(drawn) < count:
    digits = rng.randint(1, 3)
    drawn[str(rng.randint(10 ** (digits - 1), 10**digits - 1))] = None
  return list(drawn)


def _draw_columns(
  rng: random.Random, count: int
) -> tuple[list[str], list[str]]:
  """Columns of text and of numbers, at least one of each."""
  num_texts = rng.randint(1, count - 1)
  return (
    rng.sample(tuple(words.TEXT_COLUMNS), num_texts),
    rng.sample(words.NUMBER_COLUMNS, count - num_texts),
  )


def _draw_names(
  rng: random.Random, heads: Sequence[str], tails: Sequence[str], count: int
) -> list[str]:
  drawn: dict[str, None] = {}
  while len(drawn) < count:
    drawn[f"{rng.choice(heads)} {rng.choice(tails)}"] = None
  return list(drawn)


def _draw_texts(
  rng: random.Random, choices: Sequence[str], count: int
) -> list[str]:
  few = rng.sample(choices, rng.randint(2, MAX_TEXT_CHOICES))
  return [rng.choice(few) for _ in range(count)]


def _meets(cell: str, condition: Where) -> bool:
  if not condition.is_number:
    return cell == condition.value
  number, bound = int(cell), int(condition.value)
  return number > bound if condition.operator == ">" else number < bound
