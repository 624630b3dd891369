"""Generates tasks as pure functions of (split, index).

Questions are about generated worlds, which several tasks share. A question is
drawn again until both its content and its wording belong
to the task's split. So train and test share no question, whatever the seeds.
They share words, relations and types: the test split asks for other
combinations, not for other words.
"""

import functools
import random

from agentrl_jax.env.options import require_bounds, require_some_of
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.generation import questions
from environments.knowledgegraph.generation.themes import THEMES, ontology_of
from environments.knowledgegraph.generation.world import World, draw_world
from environments.knowledgegraph.problem import (
  Instance,
  KGProblem,
  gold_programs,
)
from environments.options import KnowledgeGraphOptions

TASKS_PER_WORLD = 8
WORLD_CACHE = 64  # worlds
MAX_DRAWS = 8_000  # of one question
MAX_DRAWS_OF_TWO = 2_000  # of those, with two paths where one would be allowed


class WorldGenerator:
  """Generates worlds and their questions, and caches them.

  `num_entities` bounds the entities of each type, most of which are
  distractors. A kind that is named twice is drawn twice as often.
  """

  def __init__(self, options: KnowledgeGraphOptions):
    self._num_hops = options.num_hops
    self._max_calls = options.max_rounds - 1  # of a gold solution
    self._kinds = options.kinds or questions.KINDS
    self._num_entities = options.num_entities
    require_some_of(questions.KINDS, kinds=self._kinds)
    require_bounds(num_hops=self._num_hops, least=1, most=3)
    require_bounds(num_entities=self._num_entities, least=5, most=50)
    self._ontology = ontology_of(THEMES)
    self._world = functools.lru_cache(WORLD_CACHE)(self._make_world)

  def generate(self, split: str, index: int) -> Instance:
    """Returns the task of (split, index), which no other split has."""
    number, position = divmod(index, TASKS_PER_WORLD)
    world, problems = self._world(split, number)
    return Instance(problems[position], world.graph, self._ontology)

  def _make_world(
    self, split: str, number: int
  ) -> tuple[World, tuple[KGProblem, ...]]:
    rng = random.Random(f"knowledgegraph/{split}/{number}")
    theme = rng.choice(THEMES)
    world = draw_world(rng, theme, num_entities=self._num_entities)
    known = questions.KnownWorld(world)
    problems: dict[str, KGProblem] = {}  # by content, which is unique
    while len(problems) < TASKS_PER_WORLD:
      problem = self._draw(rng, split, known)
      program = gold_programs(problem.gold_calls)[-1]
      problems.setdefault(questions.canonical(program, world.names), problem)
    return world, tuple(problems.values())

  def _draw(
    self, rng: random.Random, split: str, known: questions.KnownWorld
  ) -> KGProblem:
    """Draws a good question of the split, to which one in four belongs."""
    kind = rng.choice(self._kinds)
    may_be_two = kind == "and" or (kind != "hop" and rng.random() < 0.5)
    for draw in range(MAX_DRAWS):
      # A small world may have no two paths that share enough entities.
      is_two = kind == "and" or (may_be_two and draw < MAX_DRAWS_OF_TWO)
      problem = questions.draw_question(
        rng,
        kind,
        known,
        num_paths=1 + is_two,
        num_hops=self._num_hops,
        split=split,
      )
      if (
        problem is not None
        and len(problem.gold_calls) <= self._max_calls
        and questions.every_step_matters(problem, known.evaluation)
      ):
        return problem
    raise ConfigError(
      f"no question of kind {kind!r} with num_hops={self._num_hops} can be "
      f"asked of this graph and solved in {self._max_calls} calls; allow more "
      "entities, fewer hops or more rounds"
    )
