"""Compares prompts with those recorded from AgentBench's workers."""

import gzip
import json
import unittest

from environments.dbbench.problem import DBProblem
from environments.dbbench.prompts import TOOLS, opening
from tests.environments.dbbench.data import transcripts


class OpeningTest(unittest.TestCase):
  def test_equals_the_recorded_opening(self):
    num_checked = 0
    with gzip.open(transcripts(), "rt") as lines:
      for line in lines:
        result = json.loads(line)["output"]["result"]
        system, user = result["messages"][:2]
        prefix = "Additional table information about the question: "
        description, _, rest = user["content"].partition("\nQuestion: ")
        problem = DBProblem(
          "other",
          (),
          question=rest.removesuffix("\n"),
          description=description.removeprefix(prefix),
        )
        messages = opening(problem, "upstream")
        self.assertEqual(
          [(m.role, m.content) for m in messages],
          [("system", system["content"]), ("user", user["content"])],
        )
        num_checked += 1
    self.assertGreater(num_checked, 200)

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
