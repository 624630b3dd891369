"""Generates tasks; each is a pure function of (split, index).

The text of a table and of a question determines its split. Both are drawn again
until they belong to the task's split, so train and test share neither. The
label comes from running the gold statement.
"""

import dataclasses
import random

from agentrl_jax.data.split import split_of
from agentrl_jax.env.options import require_bounds, require_some_of
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.generation.joins import (
  MAX_TABLES,
  TableJoin,
  draw_join,
)
from environments.dbbench.generation.questions import (
  KINDS,
  Question,
  draw_question,
)
from environments.dbbench.generation.statement import Select, Statement
from environments.dbbench.generation.tables import Topic
from environments.dbbench.mysql import dialect
from environments.dbbench.problem import MUTATIONS, DBProblem, Table
from environments.options import DBBenchOptions

# A kind that is listed twice is drawn twice as often.
DEFAULT_KINDS = (*KINDS, *(kind for kind in KINDS if kind != "insert"))
INSERT_COLUMNS = 3  # keeps the row that a policy must copy short
QUESTIONS_PER_TABLE = 8  # draws before the table is drawn again
_idle: list[Connection] = []  # one per thread that has generated


@dataclasses.dataclass(frozen=True)
class Generated:
  """A problem with the statement and the table behind it."""

  problem: DBProblem
  statement: Statement
  topic: Topic


class QuestionGenerator:
  """Draws questions of some kinds about tables; all bounds are inclusive."""

  def __init__(self, options: DBBenchOptions = DBBenchOptions()):  # noqa: B008
    self._options = options
    kinds = options.kinds
    self._kinds = DEFAULT_KINDS if kinds is None else kinds
    require_some_of(KINDS, kinds=self._kinds)
    require_bounds(num_rows=options.num_rows, least=4, most=100)
    require_bounds(num_columns=options.num_columns, least=3, most=10)
    require_bounds(num_tables=options.num_tables, least=1, most=MAX_TABLES)

  def generate(self, split: str, index: int) -> Generated:
    """Returns the task of (split, index)."""
    rng = random.Random(f"dbbench/{split}/{index}")
    kind = rng.choice(self._kinds)
    num_tables = 1
    if self._options.num_tables != (1, 1) and kind.upper() not in MUTATIONS:
      num_tables = rng.randint(*self._options.num_tables)
    while True:  # tables belong to the split with probability 1/2
      join = self._draw_tables(rng, kind, num_tables)
      if join is None or split_of(join.topic.canonical) != split:
        continue
      for _ in range(QUESTIONS_PER_TABLE):
        question = _draw_question(rng, kind, join)
        if question is not None and split_of(question.text) == split:
          problem = _problem(kind, join.tables, question)
          return Generated(problem, question.statement, join.topic)

  def _draw_tables(
    self, rng: random.Random, kind: str, num_tables: int
  ) -> TableJoin | None:
    """Draws a table, or several with a join; None if they cannot be linked."""
    narrow = (INSERT_COLUMNS, INSERT_COLUMNS)
    columns = narrow if kind == "insert" else self._options.num_columns
    return draw_join(
      rng, num_tables, num_rows=self._options.num_rows, num_columns=columns
    )


def _draw_question(
  rng: random.Random, kind: str, join: TableJoin
) -> Question | None:
  """Draws a question; of several tables, one that no table alone answers."""
  question = draw_question(rng, kind, join.topic)
  if len(join.tables) == 1:
    return question
  if question is None or not isinstance(question.statement, Select):
    return None
  if not join.needs_all(question.statement):
    return None
  if not join.has_no_tie(question.statement):
    return None
  statement = dataclasses.replace(question.statement, joins=join.clauses)
  return dataclasses.replace(question, statement=statement)


def _problem(
  kind: str, tables: tuple[Table, ...], question: Question
) -> DBProblem:
  """Runs the gold statement for the label or for the hash of the tables."""
  sql = question.statement.sql()
  verb = type(question.statement).__name__.upper()
  is_mutation = verb in MUTATIONS
  database = _idle.pop() if _idle else Connection()
  database.fill(tables)
  rows = database.run(dialect.translate(sql))
  after = database.hash_of(tables) if is_mutation else ""
  _idle.append(database)
  return DBProblem(
    type=verb if is_mutation else kind,
    tables=tables,
    question=question.text,
    description=" ".join(
      f"The name of this table is {table.name}, and the headers of this table "
      f"are {','.join(table.columns)}."
      for table in tables
    ),
    gold_sql=sql,
    label=tuple(str(cell) for row in rows for cell in row),
    table_hash=after,
  )
