"""Tests the expert and each of its mistakes."""

import ast
import json
import unittest

import pytest

from agentrl_jax.data.records import Message, Task
from environments.dbbench import DBBench
from environments.dbbench.expert import MISTAKES, SQLExpert
from tests.environments.playing import play

# Mistake: a kind of question that it spoils, a pattern of the wrong SQL.
WRONG_SQL = {
  "no_cast": ("ranking", r"ORDER BY \w+( DESC)? LIMIT 1"),
  "no_where": ("lookup", r"\ASELECT \w+ FROM \w+\Z"),
  "wrong_column": ("lookup", r"\ASELECT \w+ FROM \w+ WHERE"),
  "count_for_sum": ("sum", r"COUNT\(\*\)"),
  "wrong_order": ("max", r"MIN\("),
  "drop_last_value": ("insert", r", ''\)"),
  "wrong_literal": ("lookup", r"WHERE \w+ = '"),
  "raw_reply": ("lookup", r"WHERE"),
  "no_query": ("update", None),
}


class SQLExpertTest(unittest.TestCase):
  def test_commits_the_values_of_the_reply(self):
    for reply, answers in {
      "[('Oslo',)]": ["Oslo"],
      "[(12.0,), (3,)]": ["12.0", "3"],
      "[]": [],
      "1064 (42000): wrong": ["1064 (42000): wrong"],
    }.items():
      expert = SQLExpert("SELECT 1")
      first = expert.answer([Message("user", "Question")])
      (call,) = first.tool_calls
      self.assertEqual(first.content, "")
      self.assertEqual(call.name, "execute_sql")
      self.assertEqual(json.loads(call.arguments), {"query": "SELECT 1"})
      (commit,) = expert.answer([Message("tool", reply)]).tool_calls
      with self.subTest(reply=reply):
        self.assertEqual(commit.name, "commit_final_answer")
        self.assertEqual(json.loads(commit.arguments), {"answers": answers})
        self.assertNotEqual(commit.id, call.id)


class MistakesTest(unittest.IsolatedAsyncioTestCase):
  def test_every_mistake_is_tested(self):
    self.assertEqual(set(WRONG_SQL), set(MISTAKES))

  @pytest.mark.slow
  async def test_each_mistake_gives_wrong_answers(self):
    for mistake, (kind, pattern) in WRONG_SQL.items():
      environment = DBBench(kinds=(kind,))
      wrong = 0
      for index in range(40):
        task = Task("dbbench", "train", index)
        expert = environment.expert(task, seed=0, mistakes={mistake: 1.0})
        (call,) = expert.answer([Message("user", "")]).tool_calls
        with self.subTest(mistake=mistake, call=call):
          if pattern is None:
            self.assertEqual(call.name, "commit_final_answer")
          else:
            sql = json.loads(call.arguments)["query"]
            self.assertRegex(sql, pattern)
        *_, step = await play(environment, task, mistakes={mistake: 1.0})
        wrong += step.reward == 0.0
      with self.subTest(mistake=mistake):
        self.assertGreaterEqual(wrong, 30)  # some are right by chance

  async def test_raw_replies_contain_the_answer(self):
    environment = DBBench(kinds=("lookup",))
    task = Task("dbbench", "train", 3)
    raw = environment.expert(task, seed=0, mistakes={"raw_reply": 1.0})
    raw.answer([Message("user", "")])
    (call,) = raw.answer([Message("tool", "[('Oslo',)]")]).tool_calls
    (text,) = json.loads(call.arguments)["answers"]
    self.assertEqual(ast.literal_eval(text), [("Oslo",)])
