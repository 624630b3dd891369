"""Solves DBBench tasks with the gold statement, with or without mistakes.

The expert runs the statement and commits the values of the reply. A mistake
changes the statement or the committed answer in one named way, so that a policy
that is fine-tuned on these episodes has something to unlearn.
"""

import ast
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import draw_mistakes, require_known
from environments.dbbench.generation.generator import Generated
from environments.dbbench.generation.statement import (
  Insert,
  Select,
  Statement,
  Update,
)
from environments.dbbench.generation.tables import Topic
from environments.dbbench.problem import DBProblem
from environments.options import DBBenchOptions

# Returns a wrong statement, or the same one if the mistake does not apply.
_Spoiler = Callable[[Statement, Topic, random.Random], Statement]


def _no_cast(statement: Statement, *_: object) -> Statement:
  """Compares numbers as text."""
  where = statement.where
  if where is not None and where.is_number:
    where = dataclasses.replace(where, is_number=False)
  if isinstance(statement, Select):
    return dataclasses.replace(statement, where=where, cast=False)
  return dataclasses.replace(statement, where=where)


def _no_where(statement: Statement, *_: object) -> Statement:
  """Forgets the condition."""
  return dataclasses.replace(statement, where=None)


def _wrong_column(
  statement: Statement, topic: Topic, rng: random.Random
) -> Statement:
  """Reads or writes another column."""
  if not isinstance(statement, Select | Update):
    return statement
  others = [c for c in topic.table.columns if c != statement.column]
  return dataclasses.replace(statement, column=rng.choice(others))


def _count_for_sum(statement: Statement, *_: object) -> Statement:
  """Counts rows instead of adding or averaging numbers."""
  if not isinstance(statement, Select):
    return statement
  if statement.aggregate not in ("SUM", "AVG"):
    return statement
  return dataclasses.replace(statement, aggregate="COUNT")


def _wrong_order(statement: Statement, *_: object) -> Statement:
  """Takes the lowest for the highest, or the reverse."""
  if not isinstance(statement, Select):
    return statement
  other = {"MAX": "MIN", "MIN": "MAX"}.get(statement.aggregate)
  return dataclasses.replace(
    statement,
    aggregate=other or statement.aggregate,
    descending=not statement.descending,
  )


def _drop_last_value(statement: Statement, *_: object) -> Statement:
  """Leaves the last value of a new row empty."""
  if not isinstance(statement, Insert):
    return statement
  return dataclasses.replace(statement, values=(*statement.values[:-1], ""))


def _wrong_literal(
  statement: Statement, topic: Topic, rng: random.Random
) -> Statement:
  """Takes a value of another row for the condition."""
  where = statement.where
  if where is None:
    return statement
  others = sorted(set(topic.column(where.column)) - {where.value})
  if not others:
    return statement
  return dataclasses.replace(
    statement, where=dataclasses.replace(where, value=rng.choice(others))
  )


SPOILERS: Mapping[str, _Spoiler] = {
  "no_cast": _no_cast,
  "no_where": _no_where,
  "wrong_column": _wrong_column,
  "count_for_sum": _count_for_sum,
  "wrong_order": _wrong_order,
  "drop_last_value": _drop_last_value,
  "wrong_literal": _wrong_literal,
}
MISTAKES = DBBenchOptions.mistakes
RAW_REPLY, NO_QUERY = MISTAKES[len(SPOILERS) :]


class SQLExpert(Expert):
  """Runs one statement, then commits."""

  def __init__(
    self,
    sql: str,
    *,
    label: Sequence[str] | None = None,
    reads_reply: bool = True,
    commits_raw: bool = False,
  ):
    self._sql = sql  # empty: commit at once
    self._label = label  # None: commit the values of the reply
    self._reads_reply = reads_reply
    self._commits_raw = commits_raw

  def answer(self, messages: Sequence[Message]) -> Message:
    """Runs the statement first, then commits the answer."""
    if self.num_calls == 0 and self._sql:
      return self.call("execute_sql", query=self._sql)
    answers = self._label
    if answers is None:
      answers = self._values_in(messages[-1]) if self._reads_reply else ()
    return self.call("commit_final_answer", answers=list(answers))

  def _values_in(self, message: Message) -> Sequence[str]:
    if self._commits_raw or message.role != "tool":
      return (message.content,) if message.role == "tool" else ()
    try:
      rows = ast.literal_eval(message.content)
    except (ValueError, SyntaxError):
      return (message.content,)  # an error or a reply that was cut
    return tuple(str(cell) for row in rows for cell in row)


def expert_for_generated(
  generated: Generated, *, seed: int, mistakes: Mapping[str, float]
) -> SQLExpert:
  """Returns an expert that makes the mistakes that the seed draws."""
  rng = random.Random(f"{generated.problem.question}/{seed}")
  drawn = draw_mistakes(mistakes, MISTAKES, rng, where="DBBench's expert")
  statement = generated.statement
  for mistake in drawn:
    if mistake in SPOILERS:
      statement = SPOILERS[mistake](statement, generated.topic, rng)
  return SQLExpert(
    "" if NO_QUERY in drawn else statement.sql(),
    reads_reply=isinstance(statement, Select),
    commits_raw=RAW_REPLY in drawn,
  )


def expert_for_loaded(
  problem: DBProblem, *, mistakes: Mapping[str, float]
) -> SQLExpert:
  """Returns an expert that runs the file's SQL and commits its label."""
  require_known(mistakes, MISTAKES, where="DBBench's expert")
  return SQLExpert(
    problem.gold_sql, label=() if problem.is_mutation else problem.label
  )
