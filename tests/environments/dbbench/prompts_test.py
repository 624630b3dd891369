"""Tests prompts; `transcripts_test` compares them with recorded ones."""

import unittest

from environments.dbbench.problem import DBProblem
from environments.dbbench.prompts import TOOLS, opening


class OpeningTest(unittest.TestCase):
  def test_evidence_comes_first_and_nothing_is_left_empty(self):
    problem = DBProblem("other", (), "Why?", evidence="It rained.")
    self.assertEqual(
      opening(problem, "short")[1].content,
      "Evidence about the question: It rained.\nQuestion: Why?\n",
    )


class ToolsTest(unittest.TestCase):
  def test_tools_have_their_names(self):
    self.assertEqual(
      [tool.name for tool in TOOLS], ["execute_sql", "commit_final_answer"]
    )
