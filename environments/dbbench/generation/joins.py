"""Draws several related tables, and their join as one topic for questions.

A text column of one table is the key of the next: players have a city, and
another table has the country of each city. Questions are about the join of all
tables, so that no table alone has the answer.
"""

import dataclasses
import random
from collections.abc import Sequence

from environments.dbbench.generation import words
from environments.dbbench.generation.statement import Select, Statement
from environments.dbbench.generation.tables import (
  Topic,
  draw_numbers,
  draw_texts,
  draw_topic,
)
from environments.dbbench.problem import Table

PLURALS = {"city": "cities", "country": "countries"}  # of columns; else an s
MAX_TABLES = 4


@dataclasses.dataclass(frozen=True)
class TableJoin:
  """Tables, each of which shares a column with an earlier one."""

  tables: tuple[Table, ...]
  links: tuple[str, ...]  # shared columns of all tables but the first
  topic: Topic  # of the join as one table

  @property
  def clauses(self) -> tuple[tuple[str, str], ...]:
    """Name and shared column of each table but the first."""
    names = (table.name for table in self.tables[1:])
    return tuple(zip(names, self.links, strict=True))

  def needs_all(self, statement: Statement) -> bool:
    """Checks whether a statement reads the first and the last table."""
    if not isinstance(statement, Select):
      return False
    last = set(self.tables[-1].columns) - {self.links[-1]}
    where = {statement.where.column} if statement.where else set()
    read = {statement.column, statement.order_by} | where
    # The number of rows depends on the first table in any case.
    return bool(read & last) and (
      bool(read - last - {""}) or statement.aggregate in ("COUNT", "SUM", "AVG")
    )

  def has_no_tie(self, statement: Statement) -> bool:
    """Checks that the first row of an order has no tie."""
    if not isinstance(statement, Select) or not statement.order_by:
      return True
    cells = self.topic.where(statement.where, statement.order_by)
    numbers = sorted(map(int, cells), reverse=statement.descending)
    return numbers[0] != numbers[1]


def draw_join(
  rng: random.Random,
  num_tables: int,
  *,
  num_rows: tuple[int, int],
  num_columns: tuple[int, int],
) -> TableJoin | None:
  """Draws a join; None if no column is left to link the next table."""
  first = draw_topic(rng, num_rows=num_rows, num_columns=num_columns)
  tables, links, topic = [first.table], [], first
  open_columns = list(first.texts)
  for left in range(num_tables - 1, 0, -1):
    if not open_columns:
      return None
    link = rng.choice(open_columns)
    table, texts, numbers = _draw_linked(rng, topic, link, has_next=left > 1)
    if table is None:
      return None
    tables.append(table)
    links.append(link)
    topic = _joined(topic, table, link, texts, numbers)
    open_columns = texts
  return TableJoin(tuple(tables), tuple(links), topic)


def _draw_linked(
  rng: random.Random, topic: Topic, link: str, *, has_next: bool
) -> tuple[Table | None, list[str], list[str]]:
  """Draws a table with a row for each value of the column `link`."""
  free_texts = [c for c in words.TEXT_COLUMNS if c not in topic.table.columns]
  free_numbers = [c for c in words.NUMBER_COLUMNS if c not in topic.numbers]
  num_texts = 1 if has_next else rng.randint(0, 1)
  if len(free_texts) < num_texts or not free_numbers:
    return None, [], []
  texts = rng.sample(free_texts, num_texts)
  numbers = rng.sample(free_numbers, 1)
  keys = list(dict.fromkeys(topic.column(link)))
  others = [w for w in words.TEXT_COLUMNS[link] if w not in keys]
  keys += rng.sample(others, min(2, len(others)))
  rng.shuffle(keys)
  cells = {
    c: draw_texts(rng, words.TEXT_COLUMNS[c], len(keys), num_different=3)
    for c in texts
  }
  cells |= {c: draw_numbers(rng, len(keys)) for c in numbers}
  columns = (link, *texts, *numbers)
  plural = PLURALS.get(link, f"{link}s")
  rows = zip(keys, *(cells[c] for c in columns[1:]), strict=True)
  name = f"{rng.choice(words.TABLE_MODIFIERS)}_{plural}"
  return Table(name, columns, tuple(rows)), texts, numbers


def _joined(
  topic: Topic,
  table: Table,
  link: str,
  texts: Sequence[str],
  numbers: Sequence[str],
) -> Topic:
  linked_cells = {row[0]: row[1:] for row in table.rows}
  rows = (
    row + linked_cells[cell]
    for row, cell in zip(topic.table.rows, topic.column(link), strict=True)
  )
  joined = Table(
    topic.table.name, topic.table.columns + table.columns[1:], tuple(rows)
  )
  return dataclasses.replace(
    topic,
    table=joined,
    texts=(*topic.texts, *texts),
    numbers=(*topic.numbers, *numbers),
  )
