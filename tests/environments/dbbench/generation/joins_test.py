"""Tests questions that need several tables."""

import dataclasses
import random
import unittest

import pytest

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.env.contract import SessionContract
from environments.dbbench import DBBench
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.generation.generator import QuestionGenerator
from environments.dbbench.generation.joins import (
  MAX_TABLES,
  TableJoin,
  draw_join,
)
from environments.dbbench.generation.statement import Select
from environments.dbbench.generation.tables import Topic
from environments.dbbench.mysql import dialect
from environments.dbbench.problem import MUTATIONS, Table
from environments.options import DBBenchOptions


class JoinTest(unittest.TestCase):
  def draws(self, count=20):
    rng = random.Random(0)
    while count:
      num_tables = rng.randint(2, MAX_TABLES)
      join = draw_join(rng, num_tables, num_rows=(4, 8), num_columns=(3, 5))
      if join is not None:
        self.assertEqual(len(join.tables), num_tables)
        count -= 1
        yield join

  def test_the_topic_equals_the_join_in_sql(self):
    for join in self.draws():
      columns = ", ".join(join.topic.table.columns)
      tables = join.tables[0].name + "".join(
        f" JOIN {table} USING ({link})" for table, link in join.clauses
      )
      database = Connection()
      self.addCleanup(database.close)
      database.fill(join.tables)
      statement = dialect.translate(f"SELECT {columns} FROM {tables}")
      rows = database.run(statement)
      self.assertCountEqual(rows, join.topic.table.rows)

  def test_keys_and_columns_are_unique(self):
    for join in self.draws():
      names = join.topic.table.columns
      self.assertEqual(len(set(names)), len(names))
      for table in join.tables[1:]:
        keys = [row[0] for row in table.rows]
        self.assertEqual(len(set(keys)), len(keys))
      self.assertEqual(
        len({table.name for table in join.tables}), len(join.tables)
      )

  def test_ties_are_noticed(self):
    for numbers, is_tied in (("123", False), ("313", True), ("112", False)):
      table = Table("t", ("a", "n"), tuple(("x", n) for n in numbers))
      topic = Topic(table, "ts", "a", ("a",), ("n",), "y")
      order = Select("t", column="a", order_by="n", descending=True)
      self.assertIs(
        TableJoin((table,), (), topic).has_no_tie(order), not is_tied
      )


class JoinedTasksTest(unittest.TestCase):
  def setUp(self):
    self.generator = QuestionGenerator(DBBenchOptions(num_tables=(2, 3)))

  def test_questions_have_the_tables_asked_for_and_changes_have_one(self):
    for split in SPLITS:
      for index in range(20):
        generated = self.generator.generate(split, index)
        problem = generated.problem
        self.assertEqual(generated, self.generator.generate(split, index))
        self.assertEqual(split_of(generated.topic.canonical), split)
        self.assertEqual(split_of(problem.question), split)
        if problem.type in MUTATIONS:
          self.assertEqual(len(problem.tables), 1)
        else:
          self.assertIn(len(problem.tables), (2, 3))
          self.assertEqual(
            problem.gold_sql.count(" JOIN "), len(problem.tables) - 1
          )
          for table in problem.tables:
            self.assertIn(f"table is {table.name},", problem.description)

  def test_the_answer_needs_the_last_table(self):
    """Rotates the cells of that table, which must change most answers."""
    num_asked = num_changed = 0
    for index in range(40):
      problem = self.generator.generate("train", index).problem
      if problem.type in MUTATIONS:
        continue
      last = problem.tables[-1]
      cells = [row[1:] for row in last.rows]
      rotated = [
        (row[0], *other)
        for row, other in zip(last.rows, cells[1:] + cells[:1], strict=True)
      ]
      table = dataclasses.replace(last, rows=tuple(rotated))
      database = Connection()
      self.addCleanup(database.close)
      database.fill((*problem.tables[:-1], table))
      statement = dialect.translate(problem.gold_sql)
      rows = database.run(statement)
      num_asked += 1
      num_changed += [str(c) for row in rows for c in row] != [*problem.label]
    self.assertGreater(num_changed / num_asked, 0.7)

  def test_more_tables_never_change_the_tasks_of_one(self):
    one = QuestionGenerator(DBBenchOptions(num_tables=(1, 1)))
    for index in range(8):
      self.assertEqual(
        one.generate("test", index), QuestionGenerator().generate("test", index)
      )


@pytest.mark.slow
class DBBenchWithJoinsTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return DBBench(num_tables=(1, 4))
