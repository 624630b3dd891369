"""Generated questions: well made, of one split each, as hard as asked."""

import random
import unittest

import pytest

from agentrl_jax.data.split import SPLITS
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.memory import Evaluation
from environments.knowledgegraph.engines.program import shorter
from environments.knowledgegraph.generation.freebase import load_facts
from environments.knowledgegraph.generation.generator import (
  FACT_KINDS,
  TASKS_PER_WORLD,
  FactGenerator,
  WorldGenerator,
)
from environments.knowledgegraph.generation.questions import (
  KINDS,
  draw_question,
)
from environments.knowledgegraph.generation.schema import (
  Relation,
  Theme,
  ontology_of,
)
from environments.knowledgegraph.generation.synthesis import gold_programs
from environments.knowledgegraph.generation.themes import THEMES
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.ontology import load_ontology
from tests.environments.knowledgegraph import data


def world_generator(**options):
  return WorldGenerator(
    **{
      "kinds": KINDS,
      "num_hops": (1, 2),
      "max_calls": 14,
      "num_entities": (8, 14),
      **options,
    }
  )


class WorldGeneratorTest(unittest.TestCase):
  def scenes(self, num=120, split="train", **options):
    generator = world_generator(**options)
    return [generator.generate(split, index) for index in range(num)]

  def test_splits_share_no_question(self):
    asked = {
      split: {s.problem.question for s in self.scenes(200, split)}
      for split in SPLITS
    }
    self.assertFalse(asked["train"] & asked["test"])
    self.assertGreater(len(asked["train"]), 190)

  def test_the_key_is_what_the_gold_calls_find(self):
    for scene in self.scenes():
      program = gold_programs(scene.problem.gold_calls)[-1]
      found = Evaluation(scene.graph).answers(program)
      self.assertEqual(found, scene.problem.answers)

  def test_no_step_is_idle(self):
    for scene in self.scenes():
      evaluation = Evaluation(scene.graph)
      programs = gold_programs(scene.problem.gold_calls)
      for before in programs[:-1]:
        with self.subTest(question=scene.problem.question):
          self.assertNotEqual(evaluation.answers(before), scene.problem.answers)

  def assert_no_shorter_way(self, num_train, num_test):
    """Overlooking any part of a question, of any kind, is never right."""
    counted = dict.fromkeys(KINDS, 0)
    scenes = self.scenes(num_train) + self.scenes(num_test, "test")
    for scene in scenes:
      (*_, program) = gold_programs(scene.problem.gold_calls)
      evaluation = Evaluation(scene.graph)
      counted[scene.problem.kind] += 1
      for part in shorter(program):
        self.assertNotEqual(
          evaluation.answers(part),
          scene.problem.answers,
          (scene.problem.question, str(part)),
        )
    self.assertGreater(min(counted.values()), len(scenes) / 8)

  def test_no_shorter_way_finds_the_answer(self):
    self.assert_no_shorter_way(80, 80)

  @pytest.mark.full
  @pytest.mark.timeout(600)
  def test_no_shorter_way_in_thousands_of_questions(self):
    self.assert_no_shorter_way(2000, 500)

  def test_superlatives_of_two_paths_are_still_asked(self):
    """Half of all superlatives and counts, as many as are tried for."""
    scenes = self.scenes(240, kinds=("count", "argmax", "argmin"))
    calls = [[c.name for c in s.problem.gold_calls] for s in scenes]
    share = sum("intersection" in names for names in calls) / len(calls)
    self.assertGreater(share, 0.4)

  def test_every_name_in_the_question_is_given(self):
    for scene in self.scenes():
      for name, id_ in scene.problem.entities.items():
        self.assertIn(name, scene.problem.question)
        self.assertTrue(ENTITY.fullmatch(id_))

  def test_kinds_and_hops_are_kept_to(self):
    for kind in KINDS:
      for scene in self.scenes(16, kinds=(kind,), num_hops=(2, 2)):
        calls = [call.name for call in scene.problem.gold_calls]
        self.assertEqual(scene.problem.kind, kind)
        self.assertEqual(calls.count("get_neighbors") % 2, 0)
        last = {"hop": "get_neighbors", "and": "intersection"}.get(kind, kind)
        self.assertEqual(calls[-1], last)

  def test_gold_calls_fit_in_the_rounds(self):
    for scene in self.scenes(32, num_hops=(1, 3), max_calls=8):
      self.assertLessEqual(len(scene.problem.gold_calls), 8)

  def test_tasks_share_worlds(self):
    scenes = self.scenes(2 * TASKS_PER_WORLD)
    worlds = {id(scene.graph) for scene in scenes}
    self.assertEqual(len(worlds), 2)

  def test_more_entities_distract_more(self):
    small, large = (
      sum(len(s.graph) for s in self.scenes(64, num_entities=bounds))
      for bounds in ((5, 6), (30, 40))
    )
    self.assertGreater(large, 3 * small)

  def test_what_cannot_be_asked_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "in 2 calls"):
      self.scenes(1, kinds=("and",), max_calls=2)


class WalkingTest(unittest.TestCase):
  def test_no_path_leads_through_its_own_start(self):
    """A thing that leads back to itself is no answer, so it lists nothing."""
    names = ("a.a.self", "a.a.self_of", "a.a.b", "a.b.a")
    there, back, on, home = names
    relations = (
      Relation(there, "a.a", "a.a", "self of {}", back, 1),
      Relation(back, "a.a", "a.a", "selves of {}", there, 0),
      Relation(on, "a.a", "a.b", "bs of {}", home, 1),
      Relation(home, "a.b", "a.a", "as of {}", on, 0),
    )
    graph = Graph()
    for x, y in (("m.01", "m.02"), ("m.03", "m.04")):
      for fact in ((x, there, x), (x, back, x), (x, on, y), (y, home, x)):
        graph.add(fact)
    world = World(
      Theme(types=(), relations=relations, attributes=()),
      graph,
      {f"m.0{i}": f"Item {i}" for i in range(1, 5)},
      {"a.a": ["m.01", "m.03"], "a.b": ["m.02", "m.04"]},
    )
    rng = random.Random(0)
    drawn = [
      draw_question(
        rng, "hop", world, num_paths=1, num_hops=(2, 2), split=split
      )
      for split in SPLITS
      for _ in range(300)
    ]
    firsts = {q.calls[1].arguments[1] for q in drawn if q is not None}
    self.assertEqual(firsts, {home})


class ThemesTest(unittest.TestCase):
  def test_relations_come_in_pairs_of_known_types(self):
    for theme in THEMES:
      types = {type_.id for type_ in theme.types}
      by_name = {relation.name: relation for relation in theme.relations}
      self.assertEqual(len(by_name), len(theme.relations))
      for relation in theme.relations:
        back = by_name[relation.reverse]
        self.assertEqual(back.reverse, relation.name)
        self.assertEqual(
          (back.domain, back.range), (relation.range, relation.domain)
        )
        self.assertLessEqual({relation.domain, relation.range}, types)
        self.assertEqual(relation.phrase.count("{}"), 1)

  def test_every_type_has_a_choice_of_relations(self):
    domains = ontology_of(THEMES).by_domain
    for theme in THEMES:
      for type_ in theme.types:
        self.assertGreaterEqual(len(domains[type_.id]), 2, type_.id)

  def test_phrases_tell_relations_apart(self):
    for theme in THEMES:
      phrases = [relation.phrase for relation in theme.relations]
      self.assertEqual(len(set(phrases)), len(phrases))


class FactGeneratorTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.facts = load_facts(data.freebase(), "", load_ontology(data.ontology()))

  def test_facts_are_freebases(self):
    graph = self.facts.world.graph
    self.assertGreater(len(graph), 170_000)
    spielberg = "m.06pj8"
    self.assertEqual(self.facts.world.names[spielberg], "Steven Spielberg")
    films = graph.objects(spielberg, "film.director.film")
    self.assertGreater(len(films), 5)
    for film in films:
      self.assertIn((film, "film.film.directed_by", spielberg), graph)

  def test_questions_are_solved_by_their_calls(self):
    generator = FactGenerator(
      self.facts, kinds=(), num_hops=(1, 2), max_calls=14
    )
    asked = {}
    for split in SPLITS:
      for index in range(40):
        scene = generator.generate(split, index)
        program = gold_programs(scene.problem.gold_calls)[-1]
        found = Evaluation(scene.graph).answers(program)
        self.assertEqual(found, scene.problem.answers)
        for part in shorter(program):
          self.assertNotEqual(Evaluation(scene.graph).answers(part), found)
        self.assertIn(scene.problem.kind, FACT_KINDS)
        owner = asked.setdefault(scene.problem.question, split)
        self.assertEqual(owner, split)

  def test_superlatives_need_numbers(self):
    with self.assertRaisesRegex(ConfigError, "hop, and, count"):
      FactGenerator(
        self.facts, kinds=("argmax",), num_hops=(1, 1), max_calls=14
      )


if __name__ == "__main__":
  unittest.main()
