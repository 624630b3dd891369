"""Examples of programs with their answers, in memory and by SPARQL."""

import unittest

from environments.knowledgegraph.engines import sparql
from environments.knowledgegraph.engines.graph import Graph, Literal, sort_key
from environments.knowledgegraph.engines.memory import ProgramEvaluation
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
)
from tests.environments.knowledgegraph.engines.sparql_server import select

TO, FROM, SIZE = "a.b.to", "a.b.from", "a.b.size"


def number(value):
  return Literal(str(value), "integer")


START = Join(TO, Entity("m.0a"))
LARGEST = Extreme(START, SIZE, is_max=True)
SMALLEST = Extreme(START, SIZE, is_max=False)
GRAPH = Graph(
  [
    ("m.0a", TO, "m.0b"),
    ("m.0a", TO, "m.0c"),
    ("m.0a", TO, "m.0d"),
    ("m.0a", TO, "m.0a"),
    ("m.0b", SIZE, number(9)),
    ("m.0c", SIZE, number(10)),
    ("m.0d", SIZE, number(10)),
    ("m.0a", SIZE, number(10)),
    ("m.0b", FROM, "m.0e"),
    ("m.0f", TO, "m.0b"),
    ("m.0g", TO, "m.0a"),
    ("m.0g", SIZE, number(11)),
    ("m.0h", TO, "m.0b"),
    ("m.0h", TO, "m.0c"),
    ("m.0b", "a.b.of", "m.0i"),
    ("m.0c", "a.b.of", "m.0j"),
  ]
)


class MeaningTest(unittest.TestCase):
  def assertAnswers(self, program, *answers, graph=GRAPH):
    self.assertEqual(ProgramEvaluation(graph).answers(program), set(answers))
    by_sparql = select(graph, sparql.answers_query(program))
    self.assertEqual(by_sparql, set(answers))

  def test_entities_of_the_query_are_no_answers(self):
    self.assertAnswers(START, "m.0b", "m.0c", "m.0d")
    self.assertAnswers(Count(START), "3")

  def test_entities_of_the_query_may_be_intermediate(self):
    self.assertAnswers(Join(TO, START), "m.0b", "m.0c", "m.0d")

  def test_numbers_compare_as_numbers(self):
    self.assertAnswers(SMALLEST, "m.0b")

  def test_the_start_may_tie_with_the_best(self):
    self.assertAnswers(LARGEST, "m.0a", "m.0c", "m.0d")

  def test_the_start_alone_is_not_the_best(self):
    graph = Graph(
      [
        ("m.0g", TO, "m.0g"),
        ("m.0g", TO, "m.0b"),
        ("m.0g", SIZE, number(11)),
        ("m.0b", SIZE, number(9)),
      ]
    )
    largest = Extreme(Join(TO, Entity("m.0g")), SIZE, is_max=True)
    self.assertAnswers(largest, "m.0b", graph=graph)

  def test_a_superlative_is_of_the_whole_query(self):
    self.assertAnswers(Join(FROM, LARGEST), "m.0e")
    self.assertAnswers(And(LARGEST, Join(TO, Entity("m.0f"))), "m.0b")

  def test_only_the_best_is_followed_and_intersected(self):
    self.assertAnswers(And(LARGEST, Join(TO, Entity("m.0h"))), "m.0c")
    self.assertAnswers(Join("a.b.of", LARGEST), "m.0j")
    self.assertAnswers(Join("a.b.of", SMALLEST), "m.0i")

  def test_several_superlatives_use_their_own_operands(self):
    self.assertAnswers(And(LARGEST, SMALLEST))
    self.assertAnswers(
      Extreme(LARGEST, SIZE, is_max=False), "m.0a", "m.0c", "m.0d"
    )

  def test_counts_of_superlatives(self):
    self.assertAnswers(Count(LARGEST), "3")
    self.assertAnswers(And(Count(START), Count(Join(TO, Entity("m.0f")))), "1")

  def test_an_empty_operand_has_no_answers(self):
    nothing = Join(FROM, Entity("m.0z"))
    self.assertAnswers(nothing)
    self.assertAnswers(Count(nothing), "0")
    self.assertAnswers(Extreme(nothing, SIZE, is_max=True))

  def test_texts_in_other_languages_are_no_answers(self):
    graph = Graph(
      [
        ("m.0a", TO, Literal("yes", language="en")),
        ("m.0a", TO, Literal("yes!", language="en-US")),
        ("m.0a", TO, Literal("oui", language="fr")),
        ("m.0a", TO, Literal("2009-08-08-08:00", "date")),
      ]
    )
    self.assertAnswers(START, "yes", "yes!", "2009-08-08", graph=graph)


class OrderTest(unittest.TestCase):
  def test_entities_then_numbers_then_other_literals(self):
    terms = ["m.0b", number(9), Literal("9.5", "double"), number(10)]
    terms += [Literal("1999-01-02", "date"), Literal("2001-01-01", "date")]
    self.assertEqual(sorted(reversed(terms), key=sort_key), terms)
