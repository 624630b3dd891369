"""Tests that questions have an answer, which needs numbers to be cast."""

import contextlib
import dataclasses
import random
import unittest

from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.generation.questions import KINDS, draw_question
from environments.dbbench.generation.statement import Select
from environments.dbbench.generation.tables import draw_topic


def draw(kind: str, count: int):
  """Yields `count` questions of the kind, with their tables."""
  rng = random.Random(kind)
  while count:
    topic = draw_topic(rng, num_rows=(4, 8), num_columns=(3, 5))
    question = draw_question(rng, kind, topic)
    if question is not None:
      count -= 1
      yield question, topic


def answer(statement, table) -> str:
  with contextlib.closing(Connection()) as database:
    database.fill([table])
    return database.answer(statement.sql())


class DrawQuestionTest(unittest.TestCase):
  def test_questions_have_the_words_of_the_statement(self):
    for kind in KINDS:
      for question, _ in draw(kind, 20):
        statement = question.statement
        needed = []
        if statement.where:
          needed = [statement.where.value]
        if isinstance(statement, Select) and statement.order_by:
          needed.append(statement.order_by)
        needed.extend(getattr(statement, "values", ()))
        for word in needed:
          with self.subTest(question=question.text):
            self.assertIn(word, question.text)

  def test_every_condition_matters(self):
    for kind in ("count", "sum", "ranking", "comparison", "lookup"):
      for question, topic in draw(kind, 20):
        where = question.statement.where
        if where is not None:
          self.assertTrue(topic.where(where, topic.key))

  def test_numbers_compared_as_text_are_wrong(self):
    for kind in ("max", "min", "ranking", "comparison"):
      for question, topic in draw(kind, 25):
        statement, where = question.statement, question.statement.where
        if where is not None and where.is_number:
          where = dataclasses.replace(where, is_number=False)
        uncast = dataclasses.replace(statement, where=where, cast=False)
        with self.subTest(kind=kind, question=question.text):
          self.assertNotEqual(
            answer(uncast, topic.table).replace(".0", "").replace("'", ""),
            answer(statement, topic.table).replace(".0", "").replace("'", ""),
          )

  def test_averages_are_short(self):
    for question, topic in draw("avg", 30):
      self.assertRegex(
        answer(question.statement, topic.table), r"\A\[\(\d+\.[05],\)\]\Z"
      )

  def test_rankings_have_one_answer(self):
    for question, topic in draw("ranking", 30):
      numbers = topic.column(question.statement.order_by)
      self.assertEqual(len(set(numbers)), len(numbers))

  def test_deletions_leave_something(self):
    for question, topic in draw("delete", 40):
      gone = topic.where(question.statement.where, topic.key)
      self.assertLess(0, len(gone))
      self.assertLess(len(gone), len(topic.table.rows))
