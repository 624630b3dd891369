"""Generates tasks as pure functions of (split, index).

Questions are about generated worlds, which several tasks share, or about real
facts. A question is drawn again until both its content and its wording belong
to the task's split. So train and test share no question, whatever the seeds.
They share words, relations and types: the test split asks for other
combinations, not for other words.
"""

import abc
import functools
import random
from collections.abc import Sequence

from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.generation.freebase import Facts
from environments.knowledgegraph.generation.questions import (
  KINDS,
  Question,
  canonical,
  draw_question,
  every_step_matters,
)
from environments.knowledgegraph.generation.themes import THEMES, ontology_of
from environments.knowledgegraph.generation.world import World, draw_world
from environments.knowledgegraph.problem import Instance, Problem

TASKS_PER_WORLD = 8
WORLD_CACHE = 64  # worlds
QUESTION_CACHE = 4096  # the episodes of a group share one
FACT_KINDS = ("hop", "and", "count")
MAX_DRAWS = 8_000  # of one question
MAX_DRAWS_OF_TWO = 2_000  # of those, with two paths where one would be allowed


class Generator(abc.ABC):
  """Base class of the generators.

  Args:
    kinds: of questions; a kind that is named twice is drawn twice as often.
    num_hops: bounds of the number of relations in a path.
    max_calls: the limit of calls in a gold solution.
  """

  def __init__(
    self, *, kinds: Sequence[str], num_hops: tuple[int, int], max_calls: int
  ):
    _require_bounds("num_hops", num_hops, least=1, most=3)
    self._kinds = tuple(kinds)
    self._num_hops = num_hops
    self._max_calls = max_calls

  @abc.abstractmethod
  def generate(self, split: str, index: int) -> Instance:
    """Returns the task of (split, index), which no other split has."""

  def _draw(self, rng: random.Random, split: str, world: World) -> Question:
    """Draws a good question of the split, to which one in four belongs."""
    kind = rng.choice(self._kinds)
    may_be_two = kind == "and" or (kind != "hop" and rng.random() < 0.5)
    for draw in range(MAX_DRAWS):
      # A small world may have no two paths that share enough entities.
      is_two = kind == "and" or (may_be_two and draw < MAX_DRAWS_OF_TWO)
      question = draw_question(
        rng,
        kind,
        world,
        num_paths=1 + is_two,
        num_hops=self._num_hops,
        split=split,
      )
      if (
        question is not None
        and len(question.problem.gold_calls) <= self._max_calls
        and every_step_matters(question, world)
      ):
        return question
    raise ConfigError(
      f"no question of kind {kind!r} with num_hops={self._num_hops} can be "
      f"asked of this graph and solved in {self._max_calls} calls; allow more "
      "entities, fewer hops or more rounds"
    )


class WorldGenerator(Generator):
  """Generates worlds and their questions, and caches them.

  `num_entities` bounds the entities of each type, most of which are
  distractors.
  """

  def __init__(
    self,
    *,
    kinds: Sequence[str],
    num_hops: tuple[int, int],
    max_calls: int,
    num_entities: tuple[int, int],
  ):
    super().__init__(
      kinds=_require_kinds(kinds, KINDS), num_hops=num_hops, max_calls=max_calls
    )
    _require_bounds("num_entities", num_entities, least=5, most=50)
    self._num_entities = num_entities
    self._ontology = ontology_of(THEMES)
    self._world = functools.lru_cache(WORLD_CACHE)(self._make_world)

  def generate(self, split: str, index: int) -> Instance:
    number, position = divmod(index, TASKS_PER_WORLD)
    world, questions = self._world(split, number)
    problem = questions[position].problem
    return Instance(problem, world.graph, self._ontology)

  def _make_world(
    self, split: str, number: int
  ) -> tuple[World, tuple[Question, ...]]:
    rng = random.Random(f"knowledgegraph/{split}/{number}")
    theme = rng.choice(THEMES)
    world = draw_world(rng, theme, num_entities=self._num_entities)
    questions: dict[str, Question] = {}  # by content, which is unique
    while len(questions) < TASKS_PER_WORLD:
      question = self._draw(rng, split, world)
      questions.setdefault(canonical(question.program, world.names), question)
    return world, tuple(questions.values())


class FactGenerator(Generator):
  """Draws questions about real facts, which hold no numbers; see `freebase`."""

  def __init__(
    self,
    facts: Facts,
    *,
    kinds: Sequence[str],
    num_hops: tuple[int, int],
    max_calls: int,
  ):
    super().__init__(
      kinds=_require_kinds(kinds, FACT_KINDS),
      num_hops=num_hops,
      max_calls=max_calls,
    )
    self._facts = facts
    self._question = functools.lru_cache(QUESTION_CACHE)(self._make_question)

  def generate(self, split: str, index: int) -> Instance:
    problem = self._question(split, index)
    return Instance(problem, self._facts.world.graph, self._facts.ontology)

  def _make_question(self, split: str, index: int) -> Problem:
    rng = random.Random(f"knowledgegraph/facts/{split}/{index}")
    return self._draw(rng, split, self._facts.world).problem


def _require_kinds(kinds: Sequence[str], known: Sequence[str]) -> Sequence[str]:
  """Returns the kinds, or all known ones if none is named."""
  if isinstance(kinds, str) or set(kinds) - set(known):
    raise ConfigError(
      f"KnowledgeGraph's kinds are {kinds!r}; allowed is a list of any of "
      f"{', '.join(known)}, or an empty one for all"
    )
  return kinds or known


def _require_bounds(
  name: str, bounds: tuple[int, int], *, least: int, most: int
) -> None:
  low, high = bounds
  if not least <= low <= high <= most:
    raise ConfigError(
      f"KnowledgeGraph's {name} is {bounds!r}; allowed is a pair (low, high) "
      f"with {least} <= low <= high <= {most}"
    )
