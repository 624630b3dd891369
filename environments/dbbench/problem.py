"""What a DBBench task is made of: tables, a question, and the key to it.

Plain frozen data, whether it was read from AgentBench's files or generated.
Nothing here runs SQL, and nothing here judges an answer.
"""

import dataclasses

MUTATIONS = frozenset({"INSERT", "UPDATE", "DELETE"})


@dataclasses.dataclass(frozen=True)
class Table:
  """One table; as in AgentBench every cell is text, whatever it looks like."""

  name: str
  columns: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]

  def __post_init__(self) -> None:
    width = len(self.columns)
    for row in self.rows:
      if len(row) != width:
        raise ValueError(
          f"table {self.name!r} has {width} columns, but a row of {len(row)}: "
          f"{row!r}"
        )

  @property
  def sql_columns(self) -> tuple[str, ...]:
    """Column names that a database takes: none empty, no two alike.

    A few of AgentBench's tables have headers that MySQL refuses.
    """
    names: list[str] = []
    for position, column in enumerate(self.columns, 1):
      name = column.rstrip()
      if not name or name.lower() in (known.lower() for known in names):
        name = f"{name}_{position}".lstrip("_")
      names.append(name)
    return tuple(names)


@dataclasses.dataclass(frozen=True)
class Problem:
  """One question about some tables, with what settles it.

  A mutation is settled by `table_hash`, or, where that is empty, by the hash
  after `gold_sql` has run on fresh tables; anything else by `label`.
  """

  type: str  # AgentBench's word: INSERT, UPDATE, DELETE, counting, other, ...
  tables: tuple[Table, ...]
  question: str
  description: str = ""  # of the tables, as the policy is told
  evidence: str = ""
  gold_sql: str = ""
  label: tuple[str, ...] = ()
  table_hash: str = ""

  @property
  def is_mutation(self) -> bool:
    """Whether the state of the tables is judged, rather than the answer."""
    return self.type in MUTATIONS
