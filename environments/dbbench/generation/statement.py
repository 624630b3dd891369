"""The SQL that answers generated questions, as data that can be spoilt.

A statement is built, rendered and, for the expert's mistakes, changed before it
is rendered. It covers what generated questions need, no more.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Where:
  """A condition on one column; `is_number` says that the cells are numbers."""

  column: str
  operator: str
  value: str
  is_number: bool = False

  def sql(self) -> str:
    """The clause. Cells are TEXT, so numbers are cast before they compare."""
    if self.is_number:
      return f" WHERE {name(self.column)} + 0 {self.operator} {self.value}"
    return f" WHERE {name(self.column)} {self.operator} {text(self.value)}"


@dataclasses.dataclass(frozen=True)
class Statement:
  """One statement about one table."""

  table: str
  where: Where | None = None

  def sql(self) -> str:
    """The statement as MySQL reads it."""
    raise NotImplementedError

  def _where(self) -> str:
    return self.where.sql() if self.where else ""


@dataclasses.dataclass(frozen=True)
class Select(Statement):
  """One column, perhaps aggregated, perhaps of the first row in an order.

  With `joins`, of several tables.
  """

  column: str = ""
  aggregate: str = ""  # COUNT, SUM, AVG, MAX, MIN; always over numbers
  order_by: str = ""  # a column of numbers
  descending: bool = False
  cast: bool = True  # whether aggregated and ordering numbers are cast
  joins: tuple[tuple[str, str], ...] = ()  # other tables, by a shared column

  def sql(self) -> str:
    return (
      f"SELECT {self._result()} FROM {name(self.table)}{self._joins()}"
      f"{self._where()}{self._order()}"
    )

  def _joins(self) -> str:
    return "".join(
      f" JOIN {name(table)} USING ({name(column)})"
      for table, column in self.joins
    )

  def _result(self) -> str:
    if self.aggregate == "COUNT":
      return "COUNT(*)"
    if self.aggregate:
      return f"{self.aggregate}({self._number(self.column)})"
    return name(self.column)

  def _order(self) -> str:
    if not self.order_by:
      return ""
    direction = " DESC" if self.descending else ""
    return f" ORDER BY {self._number(self.order_by)}{direction} LIMIT 1"

  def _number(self, column: str) -> str:
    return name(column) + (" + 0" if self.cast else "")


@dataclasses.dataclass(frozen=True)
class Insert(Statement):
  """One row."""

  values: tuple[str, ...] = ()

  def sql(self) -> str:
    values = ", ".join(text(value) for value in self.values)
    return f"INSERT INTO {name(self.table)} VALUES ({values})"


@dataclasses.dataclass(frozen=True)
class Update(Statement):
  """One column of the rows that meet the condition."""

  column: str = ""
  value: str = ""

  def sql(self) -> str:
    change = f"{name(self.column)} = {text(self.value)}"
    return f"UPDATE {name(self.table)} SET {change}{self._where()}"


@dataclasses.dataclass(frozen=True)
class Delete(Statement):
  """The rows that meet the condition."""

  def sql(self) -> str:
    return f"DELETE FROM {name(self.table)}{self._where()}"


def name(word: str) -> str:
  """A table or column; generated ones are plain words and need no quotes."""
  return word if word.isidentifier() else "`" + word.replace("`", "``") + "`"


def text(value: str) -> str:
  """A string literal."""
  return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
