"""Tests that tasks are functions of (split, index) and splits are disjoint."""

import hashlib
import unittest

import pytest

from agentrl_jax.data.split import SPLITS, split_of
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.generation.generator import QuestionGenerator
from environments.dbbench.generation.questions import KINDS
from environments.dbbench.grading import is_right, tables_hash
from environments.dbbench.mysql import dialect
from environments.dbbench.prompts import opening
from environments.options import DBBenchOptions

NUM_TASKS = 300  # of each split
# Of 50 tasks of each split. Policies have been trained on them, so a change
# needs a good reason and a note to users.
DIGEST = "50911ef9eb374719b444f8ebce21a0515d207fff5bff9c250146428028c5a28e"


class GeneratedTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    generator = QuestionGenerator()
    cls.generated = {
      split: [generator.generate(split, i) for i in range(NUM_TASKS)]
      for split in SPLITS
    }

  def test_tables_and_questions_belong_to_their_split(self):
    for split, tasks in self.generated.items():
      for task in tasks:
        self.assertEqual(split_of(task.topic.canonical), split)
        self.assertEqual(split_of(task.problem.question), split)
      for texts in (
        {task.topic.table for task in tasks},
        {task.problem.question for task in tasks},
      ):
        self.assertGreater(len(texts), NUM_TASKS // 3)

  def test_every_kind_is_drawn_in_both_splits(self):
    for tasks in self.generated.values():
      types = {task.problem.type for task in tasks}
      expected = {
        k.upper() if k in ("insert", "update", "delete") else k for k in KINDS
      }
      self.assertEqual(types, expected)

  def test_the_label_is_the_result_of_the_gold_statement(self):
    for task in self.generated["test"][:60]:
      problem = task.problem
      database = Connection()
      database.fill(problem.tables)
      before = tables_hash([task.topic.table.rows])
      translated = dialect.translate(problem.gold_sql)
      rows = database.run(translated)
      after = database.hash_of(problem.tables)
      database.close()
      with self.subTest(sql=problem.gold_sql):
        if problem.is_mutation:
          self.assertEqual(after, problem.table_hash)
          self.assertNotEqual(after, before)
        else:
          self.assertTrue(problem.label)
          self.assertTrue(
            is_right([cell for row in rows for cell in row], problem.label)
          )
          self.assertEqual(after, before)

  def test_rows_to_insert_have_three_values(self):
    for task in self.generated["train"]:
      if task.problem.type == "INSERT":
        self.assertEqual(len(task.statement.values), 3)

  @pytest.mark.slow
  def test_cells_are_text_and_names_are_unique(self):
    for task in self.generated["train"][:300]:
      names = task.topic.column(task.topic.key)
      self.assertEqual(len(set(names)), len(names))
      for row in task.topic.table.rows:
        self.assertTrue(all(isinstance(cell, str) for cell in row))


class GoldenTest(unittest.TestCase):
  def test_default_tasks_have_not_changed(self):
    generator, digest = QuestionGenerator(), hashlib.sha256()
    for split in SPLITS:
      for index in range(50):
        problem = generator.generate(split, index).problem
        for message in opening(problem, "upstream"):
          digest.update(message.content.encode())
        answer = problem.gold_sql, problem.label, problem.table_hash
        digest.update(repr((problem.tables, *answer)).encode())
    self.assertEqual(digest.hexdigest(), DIGEST)


class OptionsTest(unittest.TestCase):
  def test_sizes_are_within_bounds(self):
    generator = QuestionGenerator(
      DBBenchOptions(num_rows=(10, 12), num_columns=(6, 7))
    )
    for index in range(50):
      generated = generator.generate("train", index)
      self.assertIn(len(generated.topic.table.rows), range(10, 13))
      if generated.problem.type != "INSERT":
        self.assertIn(len(generated.topic.table.columns), range(6, 8))

  def test_only_given_kinds_are_drawn(self):
    generator = QuestionGenerator(DBBenchOptions(kinds=("sum", "sum", "count")))
    types = [generator.generate("test", i).problem.type for i in range(60)]
    self.assertEqual(set(types), {"sum", "count"})
    self.assertGreater(types.count("sum"), types.count("count"))
