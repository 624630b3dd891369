"""Represents the SQL of generated questions as data.

The expert's mistakes change a statement before it is rendered as SQL. Only
forms that generated questions need are covered.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Where:
  """A condition on one column; numbers compare by value if `is_number`."""

  column: str
  operator: str
  value: str
  is_number: bool = False

  def sql(self) -> str:
    """Renders the clause. Cells are TEXT, so numbers are cast to compare."""
    if self.is_number:
      return f" WHERE {name(self.column)} + 0 {self.operator} {self.value}"
    return f" WHERE {name(self.column)} {self.operator} {text(self.value)}"


@dataclasses.dataclass(frozen=True)
class Statement:
  """One statement about one table."""

  table: str
  where: Where | None = None

  def sql(self) -> str:
    """Renders the statement."""
    raise NotImplementedError

  def _where(self) -> str:
    return self.where.sql() if self.where else ""


@dataclasses.dataclass(frozen=True)
class Select(Statement):
  """Selects one column, aggregated or of the first row in an order."""

  column: str = ""
  aggregate: str = ""  # COUNT, SUM, AVG, MAX, MIN; always over numbers
  order_by: str = ""  # a column of numbers
  descending: bool = False
  cast: bool = True  # whether aggregated and ordering numbers are cast
  joins: tuple[tuple[str, str], ...] = ()  # other tables, with a shared column

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
  """Inserts one row."""

  values: tuple[str, ...] = ()

  def sql(self) -> str:
    values = ", ".join(text(value) for value in self.values)
    return f"INSERT INTO {name(self.table)} VALUES ({values})"


@dataclasses.dataclass(frozen=True)
class Update(Statement):
  """Sets one column of the rows that meet the condition."""

  column: str = ""
  value: str = ""

  def sql(self) -> str:
    change = f"{name(self.column)} = {text(self.value)}"
    return f"UPDATE {name(self.table)} SET {change}{self._where()}"


@dataclasses.dataclass(frozen=True)
class Delete(Statement):
  """Deletes the rows that meet the condition."""

  def sql(self) -> str:
    return f"DELETE FROM {name(self.table)}{self._where()}"


def name(word: str) -> str:
  """Renders the name of a table or column, in backticks if it needs them."""
  return word if word.isidentifier() else "`" + word.replace("`", "``") + "`"


def text(value: str) -> str:
  """Renders a string literal."""
  return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
