"""Graphs made up to fit a question: small, right, and the same every time."""

import unittest

from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines.graph import Literal
from environments.knowledgegraph.engines.memory import Evaluation
from environments.knowledgegraph.engines.program import And, Count, Entity, Join
from environments.knowledgegraph.generation.synthesis import (
  gold_programs,
  synthesise,
)
from environments.knowledgegraph.ontology import Ontology
from environments.knowledgegraph.problem import GoldCall, Problem

ONTOLOGY = Ontology(
  ranges={"a.a.b": "a.b", "a.b.a": "a.a", "a.b.c": "a.c", "a.a.n": "type.int"},
  domains={"a.a.b": "a.a", "a.b.a": "a.b", "a.b.c": "a.b", "a.a.n": "a.a"},
  relations=frozenset(["a.a.b", "a.b.a", "a.b.c"]),
  attributes=frozenset(["a.a.n"]),
  reverses={"a.a.b": "a.b.a", "a.b.a": "a.a.b"},
)
HOP = GoldCall("get_neighbors", ("m.0x", "a.b.a"))


def problem(calls, answers):
  return Problem("q", {"x": "m.0x", "y": "m.0y"}, frozenset(answers), calls)


def answers_to(made):
  evaluation = Evaluation(synthesise(made, ONTOLOGY))
  return evaluation.answers(gold_programs(made.gold_calls)[-1])


class SynthesisTest(unittest.TestCase):
  def test_every_shape_gets_its_answer(self):
    other = GoldCall("get_neighbors", ("m.0y", "a.b.a"))
    both = GoldCall("intersection", ("#0", "#1"))
    for calls, answers in (
      ((HOP,), {"m.01", "g.2"}),
      ((HOP, GoldCall("get_neighbors", ("#0", "a.a.b"))), {"m.01", "m.02"}),
      ((HOP, other, both), {"m.01"}),
      ((HOP, GoldCall("argmax", ("#0", "a.a.n"))), {"m.01"}),
      ((HOP, GoldCall("argmin", ("#0", "a.a.n"))), {"m.01", "m.02"}),
      ((HOP, GoldCall("count", ("#0",))), {"602"}),
      ((HOP, other, both, GoldCall("count", ("#2",))), {"0"}),
      ((HOP,), {"a text"}),
    ):
      with self.subTest(calls=calls):
        self.assertEqual(answers_to(problem(calls, answers)), answers)

  def test_distractors_surround_the_answer(self):
    calls = (
      HOP,
      GoldCall("get_neighbors", ("m.0y", "a.b.a")),
      GoldCall("intersection", ("#0", "#1")),
      GoldCall("argmax", ("#2", "a.a.n")),
    )
    made = problem(calls, {"m.01"})
    graph = synthesise(made, ONTOLOGY)
    evaluation = Evaluation(graph)
    one, other, both, _ = gold_programs(calls)
    common = evaluation.answers(both)
    self.assertLess(common, evaluation.answers(one))
    self.assertLess(common, evaluation.answers(other))
    self.assertLess({"m.01"}, common)
    self.assertIn("a.b.c", graph.about("m.0x"))  # of its type, not needed
    self.assertIn(("m.01", "a.a.b", "m.0x"), graph)  # the way back

  def test_the_same_every_time(self):
    made = problem((HOP,), {"m.01", "m.02"})
    first, second = (list(synthesise(made, ONTOLOGY)) for _ in range(2))
    self.assertEqual(first, second)

  def test_invented_ids_can_be_told_from_none_of_the_questions(self):
    for subject, _, thing in synthesise(problem((HOP,), {"m.01"}), ONTOLOGY):
      self.assertTrue(ENTITY.fullmatch(subject))
      self.assertTrue(isinstance(thing, Literal) or ENTITY.fullmatch(thing))

  def test_calls_that_cannot_be_followed_leave_nothing(self):
    for calls in (
      (),
      (GoldCall("intersection", ("#0", "#1")),),
      (GoldCall("search", ("x",)),),
      (GoldCall("get_neighbors", ("m.0x",)),),
    ):
      self.assertEqual(len(synthesise(problem(calls, {"m.01"}), ONTOLOGY)), 0)

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


if __name__ == "__main__":
  unittest.main()
