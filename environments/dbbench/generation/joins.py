"""Draws several tables that hang together, as one topic to ask about.

A column of texts in one table is the key of the next: players have a city, and
another table tells the country of each city. What is asked is asked of the join
of all, so that no table alone has the answer.
"""

import dataclasses
import random
from collections.abc import Sequence

from environments.dbbench.generation import words
from environments.dbbench.generation.statement import Select, Statement
from environments.dbbench.generation.tables import (
  Topic,
  draw_numbers,
  draw_topic,
)
from environments.dbbench.problem import Table

PLURALS = {"city": "cities", "country": "countries"}  # of columns; else an s
MAX_TABLES = 4


@dataclasses.dataclass(frozen=True)
class Join:
  """Tables, each of which shares a column with one before it."""

  tables: tuple[Table, ...]
  links: tuple[str, ...]  # the columns that tie the others to those before
  topic: Topic  # of the join, as if it were one table

  @property
  def clauses(self) -> tuple[tuple[str, str], ...]:
    """Table and shared column of each but the first."""
    names = (table.name for table in self.tables[1:])
    return tuple(zip(names, self.links, strict=True))

  def needs_all(self, statement: Statement) -> bool:
    """Whether a statement reads the last table, and the first."""
    if not isinstance(statement, Select):
      return False
    last = set(self.tables[-1].columns) - {self.links[-1]}
    where = {statement.where.column} if statement.where else set()
    read = {statement.column, statement.order_by} | where
    # Rows are counted in the first table, whatever is read.
    return bool(read & last) and (
      bool(read - last - {""}) or statement.aggregate in ("COUNT", "SUM", "AVG")
    )

  def is_plain(self, statement: Statement) -> bool:
    """Whether the first in an order is not tied with others."""
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
) -> Join | None:
  """A join, or None where the draw has no column left to go on with."""
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
  return Join(tuple(tables), tuple(links), topic)


def _draw_linked(
  rng: random.Random, topic: Topic, link: str, *, has_next: bool
) -> tuple[Table | None, list[str], list[str]]:
  """A table that tells something of each value of the column `link`."""
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
  cells = {c: _few(rng, words.TEXT_COLUMNS[c], len(keys)) for c in texts}
  cells |= {c: draw_numbers(rng, len(keys)) for c in numbers}
  columns = (link, *texts, *numbers)
  plural = PLURALS.get(link, f"{link}s")
  rows = zip(keys, *(cells[c] for c in columns[1:]), strict=True)
  name = f"{rng.choice(words.TABLE_MODIFIERS)}_{plural}"
  return Table(name, columns, tuple(rows)), texts, numbers


def _few(rng: random.Random, choices: Sequence[str], count: int) -> list[str]:
  few = rng.sample(choices, 3)
  return [rng.choice(few) for _ in range(count)]


def _joined(
  topic: Topic,
  table: Table,
  link: str,
  texts: Sequence[str],
  numbers: Sequence[str],
) -> Topic:
  """The topic with the columns of one more table."""
  told = {row[0]: row[1:] for row in table.rows}
  rows = (
    row + told[cell]
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
