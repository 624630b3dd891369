"""Draws random tables.

Every cell is text, as in AgentBench. Numbers have one to three digits and
differ within a column, so they order differently as text: a policy that forgets
to cast them is wrong.
"""

import dataclasses
import random
from collections.abc import Sequence

from environments.dbbench.generation import words
from environments.dbbench.generation.statement import Where
from environments.dbbench.problem import Table

MAX_TEXT_CHOICES = 3  # words per text column; few, so that they repeat


@dataclasses.dataclass(frozen=True)
class Topic:
  """A table and the roles of its columns."""

  table: Table
  plural: str  # the subject of the rows: "players"
  key: str  # the column that names a row
  texts: tuple[str, ...]
  numbers: tuple[str, ...]
  new_name: str  # a name for the key column that no row has

  @property
  def canonical(self) -> str:
    """The table as one text, which determines its split."""
    lines = (self.table.columns, *self.table.rows)
    return "\n".join([self.table.name, *("|".join(line) for line in lines)])

  def column(self, name: str) -> list[str]:
    """Returns the cells of one column."""
    position = self.table.columns.index(name)
    return [row[position] for row in self.table.rows]

  def where(self, condition: Where | None, name: str) -> list[str]:
    """Returns the cells of one column in rows that meet the condition."""
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
  rng: random.Random, *, num_rows: tuple[int, int], num_columns: tuple[int, int]
) -> Topic:
  """Draws a table; both bounds are inclusive."""
  plural = rng.choice(tuple(words.SUBJECTS))
  key, heads, tails = words.SUBJECTS[plural]
  height = rng.randint(*num_rows)
  texts, numbers = _draw_columns(rng, rng.randint(*num_columns) - 1)
  names = _draw_names(rng, heads, tails, height + 1)
  cells = {key: names[1:]}
  for column in texts:
    num_different = rng.randint(2, MAX_TEXT_CHOICES)
    choices = words.TEXT_COLUMNS[column]
    cells[column] = draw_texts(rng, choices, height, num_different)
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
  """Draws different numbers of one to three digits."""
  drawn: dict[str, None] = {}
  while len(drawn) < count:
    digits = rng.randint(1, 3)
    drawn[str(rng.randint(10 ** (digits - 1), 10**digits - 1))] = None
  return list(drawn)


def _draw_columns(
  rng: random.Random, count: int
) -> tuple[list[str], list[str]]:
  """Draws columns of text and of numbers, at least one of each."""
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


def draw_texts(
  rng: random.Random, choices: Sequence[str], count: int, num_different: int
) -> list[str]:
  """Draws texts of which at most `num_different` differ."""
  drawn = rng.sample(choices, num_different)
  return [rng.choice(drawn) for _ in range(count)]


def _meets(cell: str, condition: Where) -> bool:
  if not condition.is_number:
    return cell == condition.value
  number, bound = int(cell), int(condition.value)
  return number > bound if condition.operator == ">" else number < bound
