"""Synthesised graphs give the answer, distract, and are deterministic."""

import unittest

from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines.graph import Literal
from environments.knowledgegraph.engines.memory import ProgramEvaluation
from environments.knowledgegraph.engines.program import And, Count, Entity, Join
from environments.knowledgegraph.generation.synthesis import synthesise
from environments.knowledgegraph.problem import (
  GoldCall,
  KGProblem,
  Ontology,
  gold_programs,
)

ONTOLOGY = Ontology(
  ranges={"a.a.b": "a.b", "a.b.a": "a.a", "a.b.c": "a.c", "a.a.n": "type.int"},
  domains={"a.a.b": "a.a", "a.b.a": "a.b", "a.b.c": "a.b", "a.a.n": "a.a"},
  relations=frozenset(["a.a.b", "a.b.a", "a.b.c"]),
  attributes=frozenset(["a.a.n"]),
  reverses={"a.a.b": "a.b.a", "a.b.a": "a.a.b"},
)
HOP = GoldCall("get_neighbors", ("m.0x", "a.b.a"))


def a_problem(calls, answers):
  return KGProblem("q", {"x": "m.0x", "y": "m.0y"}, frozenset(answers), calls)


def answers_to(problem):
  evaluation = ProgramEvaluation(synthesise(problem, ONTOLOGY))
  return evaluation.answers(gold_programs(problem.gold_calls)[-1])


class SynthesisTest(unittest.TestCase):
  def test_every_shape_gets_its_answer(self):
    hop = GoldCall("get_neighbors", ("m.0y", "a.b.a"))
    both = GoldCall("intersection", ("#0", "#1"))
    for calls, answers in (
      ((HOP,), {"m.01", "g.2"}),
      ((HOP, GoldCall("get_neighbors", ("#0", "a.a.b"))), {"m.01", "m.02"}),
      ((HOP, hop, both), {"m.01"}),
      ((HOP, GoldCall("argmax", ("#0", "a.a.n"))), {"m.01"}),
      ((HOP, GoldCall("argmin", ("#0", "a.a.n"))), {"m.01", "m.02"}),
      ((HOP, GoldCall("count", ("#0",))), {"602"}),
      ((HOP, hop, both, GoldCall("count", ("#2",))), {"0"}),
      ((HOP,), {"a text"}),
    ):
      with self.subTest(calls=calls):
        self.assertEqual(answers_to(a_problem(calls, answers)), answers)

  def test_distractors_surround_the_answer(self):
    calls = (
      HOP,
      GoldCall("get_neighbors", ("m.0y", "a.b.a")),
      GoldCall("intersection", ("#0", "#1")),
      GoldCall("argmax", ("#2", "a.a.n")),
    )
    graph = synthesise(a_problem(calls, {"m.01"}), ONTOLOGY)
    evaluation = ProgramEvaluation(graph)
    left, right, both, _ = gold_programs(calls)
    common = evaluation.answers(both)
    self.assertLess(common, evaluation.answers(left))
    self.assertLess(common, evaluation.answers(right))
    self.assertLess({"m.01"}, common)
    self.assertIn("a.b.c", graph.about("m.0x"))  # a relation of its type
    self.assertIn(("m.01", "a.a.b", "m.0x"), graph)  # the reverse

  def test_synthesis_is_deterministic(self):
    problem = a_problem((HOP,), {"m.01", "m.02"})
    first, second = (list(synthesise(problem, ONTOLOGY)) for _ in range(2))
    self.assertEqual(first, second)

  def test_invented_ids_have_the_form_of_real_ones(self):
    graph = synthesise(a_problem((HOP,), {"m.01"}), ONTOLOGY)
    for subject, _, object_ in graph:
      self.assertTrue(ENTITY.fullmatch(subject))
      self.assertTrue(isinstance(object_, Literal) or ENTITY.fullmatch(object_))

  def test_calls_that_cannot_be_run_give_an_empty_graph(self):
    for calls in (
      (),
      (GoldCall("intersection", ("#0", "#1")),),
      (GoldCall("search", ("x",)),),
      (GoldCall("get_neighbors", ("m.0x",)),),
    ):
      graph = synthesise(a_problem(calls, {"m.01"}), ONTOLOGY)
      self.assertEqual(list(graph), [])

  def test_programs_of_calls(self):
    calls = (
      GoldCall("get_relations", ("m.0x",)),
      HOP,
      GoldCall("get_neighbors", ("#0", "a.a.b")),
      GoldCall("intersection", ("#1", "#1")),
      GoldCall("count", ("#2",)),
    )
    hop = Join("a.a.b", Join("a.b.a", Entity("m.0x")))
    self.assertEqual(gold_programs(calls)[-1], Count(And(hop, hop)))
