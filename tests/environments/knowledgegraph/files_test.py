"""Files of AgentBench are read, and others refused."""

import json
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.problem import (
  GoldCall,
  load_ontology,
  load_problems,
)
from tests.environments.knowledgegraph import data

FILM = "film.director.film"


class FilesTestCase(unittest.TestCase):
  def setUp(self):
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def write(self, name, text):
    (self.folder / name).write_text(text, encoding="utf-8")
    return str(self.folder / name)


class QuestionsTest(FilesTestCase):
  def test_an_entry(self):
    entry = {
      "question": "who?",
      "entities": {"A, B": "m.01"},
      "answer": [{"answer_argument": "m.02"}, {"answer_argument": 7}],
      "actions": ["get_neighbors(#0, a.b.c)", "count(#1)"],
      "source": "grailqa",
    }
    (problem,) = load_problems(self.write("q.json", json.dumps([entry])))
    self.assertEqual(problem.question, "who?")
    self.assertEqual(problem.entities, {"A, B": "m.01"})
    self.assertEqual(problem.answers, {"m.02", "7"})
    self.assertEqual(problem.kind, "grailqa")
    self.assertEqual(
      problem.gold_calls,
      (GoldCall("get_neighbors", ("#0", "a.b.c")), GoldCall("count", ("#1",))),
    )

  def test_an_entry_without_calls(self):
    entry = {"question": "?", "entities": {}, "answer": []}
    (problem,) = load_problems(self.write("q.json", json.dumps([entry])))
    self.assertEqual(problem.gold_calls, ())
    self.assertEqual(problem.kind, "other")

  def test_the_real_files(self):
    self.assertEqual(len(load_problems(data.questions("dev"))), 20)
    train = load_problems(data.questions("train"))
    self.assertEqual(len(train), 1214)
    calls = sum(len(problem.gold_calls) for problem in train)
    self.assertEqual(calls, 3311 * 2 + 994 + 196 + 271 + 206 + 65)

  def test_files_of_another_kind_are_refused(self):
    for text in ("", "{}7", '[{"question": "?"}]', '["x"]', "7"):
      path = self.write("q.json", text)
      with self.subTest(text=text), self.assertRaises(ConfigError):
        load_problems(path)
    with self.assertRaisesRegex(ConfigError, "not a file"):
      load_problems(str(self.folder / "none.json"))

  def test_an_action_that_is_no_call_is_refused(self):
    entry = {"question": "?", "entities": {}, "answer": [], "actions": ["x"]}
    with self.assertRaisesRegex(ConfigError, "'x' is not a call"):
      load_problems(self.write("q.json", json.dumps([entry])))


class OntologyTest(FilesTestCase):
  def test_the_real_folder(self):
    ontology = load_ontology(data.ontology())
    self.assertEqual(len(ontology.relations), 13100)
    self.assertEqual(len(ontology.attributes), 3384)
    self.assertEqual(ontology.ranges[FILM], "film.film")
    self.assertLessEqual(ontology.relations, ontology.ranges.keys())

  def test_missing_files_are_named(self):
    self.write("fb_roles", "a a.b c\n")
    with self.assertRaisesRegex(
      ConfigError, "where vocab.json cannot be found"
    ):
      load_ontology(self.folder)

  def test_a_folder_of_another_kind_is_refused(self):
    self.write("fb_roles", "a\n")
    self.write("vocab.json", '{"relations": [], "attributes": []}')
    with self.assertRaisesRegex(ConfigError, "does not hold"):
      load_ontology(self.folder)
