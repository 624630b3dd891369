"""Generated questions are well formed, of one split, and as hard as asked."""

import functools
import random
import unittest

import pytest

from agentrl_jax.data.split import SPLITS
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import ProgramEvaluation
from environments.knowledgegraph.engines.program import shorter
from environments.knowledgegraph.generation.generator import WorldGenerator
from environments.knowledgegraph.generation.questions import (
  KINDS,
  KnownWorld,
  draw_question,
)
from environments.knowledgegraph.generation.themes import Relation, WorldTheme
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.problem import gold_programs
from environments.options import KnowledgeGraphOptions


def world_generator(**options):
  return WorldGenerator(KnowledgeGraphOptions(**options))


@functools.cache
def instances_of(num, split="train", **options):
  """Draws questions, once for all tests that read them."""
  generator = world_generator(**options)
  return [generator.generate(split, index) for index in range(num)]


class WorldGeneratorTest(unittest.TestCase):
  @pytest.mark.slow
  def test_splits_share_no_question(self):
    asked = {
      split: {s.problem.question for s in instances_of(200, split)}
      for split in SPLITS
    }
    self.assertFalse(asked["train"] & asked["test"])
    self.assertGreater(len(asked["train"]), 190)

  def test_the_gold_calls_give_the_answer(self):
    for instance in instances_of(120):
      program = gold_programs(instance.problem.gold_calls)[-1]
      answers = ProgramEvaluation(instance.graph).answers(program)
      self.assertEqual(answers, instance.problem.answers)

  def test_every_call_changes_the_answer(self):
    for instance in instances_of(120):
      evaluation = ProgramEvaluation(instance.graph)
      programs = gold_programs(instance.problem.gold_calls)
      for before in programs[:-1]:
        with self.subTest(question=instance.problem.question):
          self.assertNotEqual(
            evaluation.answers(before), instance.problem.answers
          )

  def assert_no_shorter_program(self, num_train, num_test):
    """Checks questions of all kinds: no shorter program has the answer."""
    counted = dict.fromkeys(KINDS, 0)
    instances = instances_of(num_train) + instances_of(num_test, "test")
    for instance in instances:
      (*_, program) = gold_programs(instance.problem.gold_calls)
      evaluation = ProgramEvaluation(instance.graph)
      counted[instance.problem.kind] += 1
      for part in shorter(program):
        self.assertNotEqual(
          evaluation.answers(part),
          instance.problem.answers,
          (instance.problem.question, str(part)),
        )
    self.assertGreater(min(counted.values()), len(instances) / 8)

  def test_no_shorter_program_has_the_answer(self):
    self.assert_no_shorter_program(120, 40)

  @pytest.mark.full
  @pytest.mark.timeout(600)
  def test_no_shorter_program_in_thousands_of_questions(self):
    self.assert_no_shorter_program(2000, 500)

  def test_entities_are_named_in_the_question(self):
    for instance in instances_of(120):
      for name, id_ in instance.problem.entities.items():
        self.assertIn(name, instance.problem.question)
        self.assertTrue(ENTITY.fullmatch(id_))

  def test_kinds_and_hops_are_kept_to(self):
    for kind in KINDS:
      for instance in instances_of(16, kinds=(kind,), num_hops=(2, 2)):
        calls = [call.name for call in instance.problem.gold_calls]
        self.assertEqual(instance.problem.kind, kind)
        self.assertEqual(calls.count("get_neighbors") % 2, 0)
        last = {"hop": "get_neighbors", "and": "intersection"}.get(kind, kind)
        self.assertEqual(calls[-1], last)

  def test_gold_calls_fit_in_the_rounds(self):
    for instance in instances_of(32, num_hops=(1, 3), max_rounds=9):
      self.assertLessEqual(len(instance.problem.gold_calls), 8)

  def test_impossible_options_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "in 2 calls"):
      instances_of(1, kinds=("and",), max_rounds=3)


class WalkingTest(unittest.TestCase):
  def test_no_path_returns_to_its_start(self):
    """The start is no answer of a query, so tools would list no relations."""
    names = ("a.a.self", "a.a.self_of", "a.a.b", "a.b.a")
    to_self, from_self, forth, back = names
    relations = (
      Relation(to_self, "a.a", "a.a", "self of {}", from_self, 1),
      Relation(from_self, "a.a", "a.a", "selves of {}", to_self, 0),
      Relation(forth, "a.a", "a.b", "bs of {}", back, 1),
      Relation(back, "a.b", "a.a", "as of {}", forth, 0),
    )
    graph = Graph()
    for x, y in (("m.01", "m.02"), ("m.03", "m.04")):
      graph.add((x, to_self, x))
      graph.add((x, from_self, x))
      graph.add((x, forth, y))
      graph.add((y, back, x))
    world = World(
      WorldTheme(types=(), relations=relations, attributes=()),
      graph,
      {f"m.0{i}": f"Item {i}" for i in range(1, 5)},
      {"a.a": ["m.01", "m.03"], "a.b": ["m.02", "m.04"]},
    )
    rng = random.Random(0)
    drawn = [
      draw_question(
        rng, "hop", KnownWorld(world), num_paths=1, num_hops=(2, 2), split=split
      )
      for split in SPLITS
      for _ in range(300)
    ]
    firsts = {q.gold_calls[1].arguments[1] for q in drawn if q is not None}
    self.assertEqual(firsts, {back})
