"""Files of AgentBench and Freebase are read, and others refused."""

import io
import json
import pathlib
import tarfile
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.engines.graph import Graph, Literal
from environments.knowledgegraph.engines.sparql import n_triples
from environments.knowledgegraph.generation.freebase import load_facts
from environments.knowledgegraph.problem import (
  GoldCall,
  Ontology,
  load_ontology,
  load_problems,
)
from tests.environments.knowledgegraph import data

FILM = "film.director.film"
BACK = "film.film.directed_by"
ONTOLOGY = Ontology(
  ranges={FILM: "film.film", BACK: "film.director"},
  domains={FILM: "film.director", BACK: "film.film"},
  relations=frozenset([FILM, BACK]),
  attributes=frozenset(),
  reverses={FILM: BACK, BACK: FILM},
)


class FilesTestCase(unittest.TestCase):
  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

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
    self.assertEqual(ontology.reverses[FILM], BACK)
    self.assertIn(FILM, ontology.by_domain["film.director"])
    self.assertLessEqual(ontology.relations, ontology.ranges.keys())

  def test_missing_files_are_named(self):
    self.write("fb_roles", "a a.b c\n")
    with self.assertRaisesRegex(
      ConfigError, "where reverse_properties, vocab.json cannot be found"
    ):
      load_ontology(self.folder)

  def test_a_folder_of_another_kind_is_refused(self):
    self.write("fb_roles", "a\n")
    self.write("reverse_properties", "")
    self.write("vocab.json", '{"relations": [], "attributes": []}')
    with self.assertRaisesRegex(ConfigError, "does not hold"):
      load_ontology(self.folder)


class FreebaseTest(FilesTestCase):
  def archive(self, lines):
    path = self.folder / "FB15k-237.tar.gz"
    body = "".join(f"{line}\r\n" for line in lines).encode()
    with tarfile.open(path, "w:gz") as files:
      member = tarfile.TarInfo("train.txt")
      member.size = len(body)
      files.addfile(member, io.BytesIO(body))
    return str(path)

  def test_facts_and_their_reverses(self):
    self.write("entity2text.txt", "/m/01\tAnn\n/m/02\tBlue\n")
    path = self.archive(
      [
        "/m/01\t/film/director/film\t/m/02",
        "/m/01\t/film/actor/film./film/performance/film\t/m/02",
        "/m/01\t/film/director/film\t/m/03",  # has no name
        "/m/01\t/not/in/ontology\t/m/02",
      ]
    )
    world = load_facts(path, "", ONTOLOGY)
    self.assertEqual(
      set(world.graph), {("m.01", FILM, "m.02"), ("m.02", BACK, "m.01")}
    )
    self.assertEqual(world.names["m.01"], "Ann")
    self.assertEqual(
      world.members, {"film.film": ["m.02"], "film.director": ["m.01"]}
    )
    phrases = {r.name: r.phrase for r in world.theme.relations}
    self.assertEqual(phrases[FILM], "film of the director {}")

  def test_missing_or_broken_files_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "graph is .*FB15k-237.tar.gz"):
      load_facts(str(self.folder / "none"), "", ONTOLOGY)
    path = self.write("FB15k-237.tar.gz", "no archive")
    with self.assertRaisesRegex(ConfigError, "entity_names is"):
      load_facts(path, "", ONTOLOGY)
    self.write("entity2text.txt", "/m/01\tAnn\n/m/02\tBlue\n")
    with self.assertRaisesRegex(ConfigError, "does not hold FB15k-237"):
      load_facts(path, "", ONTOLOGY)
    with self.assertRaisesRegex(ConfigError, "holds no fact"):
      load_facts(self.archive(["/m/01\t/x/y/z\t/m/02"]), "", ONTOLOGY)


class TriplesTest(unittest.TestCase):
  def test_lines(self):
    graph = Graph(
      [
        ("m.01", FILM, "m.02"),
        ("m.01", "a.b.n", Literal("7", "integer")),
        ("m.01", "a.b.t", Literal('a "b"\n\\', language="en")),
      ]
    )
    namespace = "http://rdf.freebase.com/ns/"
    self.assertEqual(
      n_triples(graph).splitlines(),
      [
        f"<{namespace}m.01> <{namespace}{FILM}> <{namespace}m.02> .",
        f'<{namespace}m.01> <{namespace}a.b.n> "7"'
        "^^<http://www.w3.org/2001/XMLSchema#integer> .",
        f'<{namespace}m.01> <{namespace}a.b.t> "a \\"b\\"\\n\\\\"@en .',
      ],
    )
