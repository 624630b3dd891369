"""Worlds and questions out of nothing but (split, index).

Several tasks share one world. A question is drawn again until both what it asks
and how it is worded belong to the task's split, so train and test share no
question, whatever the seeds. Words, relations and types they share: a test asks
for other combinations, not for other words.
"""

import functools
import random
from collections.abc import Sequence

from agentrl_jax.data.split import split_of
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.problem import Problem, Scene
from environments.knowledgegraph.questions import (
  KINDS,
  Question,
  canonical,
  draw_question,
)
from environments.knowledgegraph.schema import THEMES, ontology_of
from environments.knowledgegraph.world import World, draw_world

TASKS_PER_WORLD = 8
WORLD_CACHE = 64  # worlds kept at hand
MAX_DRAWS = 20_000  # of a question; one in a dozen is good and of the split


class Generator:
  """Makes worlds and their questions, and keeps the last few.

  Args:
    kinds: of questions; one named twice is asked twice as often.
    num_hops: bounds of the relations from an entity to what is asked for.
    num_entities: bounds of the things of each type, most of which distract.
    max_calls: that the gold solution may take.
  """

  def __init__(
    self,
    *,
    kinds: Sequence[str] = KINDS,
    num_hops: tuple[int, int] = (1, 2),
    num_entities: tuple[int, int] = (8, 14),
    max_calls: int = 14,
  ):
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds or isinstance(kinds, str):
      raise ConfigError(
        f"KnowledgeGraph's kinds are {kinds!r}; allowed is a list of one or "
        f"more of {', '.join(KINDS)}"
      )
    _require_bounds("num_hops", num_hops, least=1, most=3)
    _require_bounds("num_entities", num_entities, least=5, most=50)
    self._kinds = tuple(kinds)
    self._num_hops = num_hops
    self._num_entities = num_entities
    self._max_calls = max_calls
    self._ontology = ontology_of(THEMES)
    self._world = functools.lru_cache(WORLD_CACHE)(self._make_world)

  def generate(self, split: str, index: int) -> Scene:
    """The task that belongs to (split, index), and to no other split."""
    number, position = divmod(index, TASKS_PER_WORLD)
    world, questions = self._world(split, number)
    return Scene(_problem(questions[position]), world.graph, self._ontology)

  def _make_world(
    self, split: str, number: int
  ) -> tuple[World, tuple[Question, ...]]:
    rng = random.Random(f"knowledgegraph/{split}/{number}")
    theme = rng.choice(THEMES)
    world = draw_world(rng, theme, num_entities=self._num_entities)
    questions: dict[str, Question] = {}  # by what they ask: no two are alike
    while len(questions) < TASKS_PER_WORLD:
      question = self._draw(rng, split, world)
      questions.setdefault(canonical(question, world.names), question)
    return world, tuple(questions.values())

  def _draw(self, rng: random.Random, split: str, world: World) -> Question:
    kind = rng.choice(self._kinds)
    for _ in range(MAX_DRAWS):
      question = draw_question(rng, kind, world, num_hops=self._num_hops)
      if (
        question is not None
        and len(question.calls) <= self._max_calls
        and split_of(question.text) == split
        and split_of(canonical(question, world.names)) == split
      ):
        return question
    raise ConfigError(
      f"no question of kind {kind!r} with num_hops={self._num_hops} and "
      f"num_entities={self._num_entities} can be solved in "
      f"{self._max_calls} calls; allow more entities, fewer hops or more rounds"
    )


def _problem(question: Question) -> Problem:
  return Problem(
    question=question.text,
    entities=question.entities,
    answers=question.answers,
    gold_calls=question.calls,
    kind=question.kind,
  )


def _require_bounds(
  name: str, bounds: tuple[int, int], *, least: int, most: int
) -> None:
  low, high = bounds
  if not least <= low <= high <= most:
    raise ConfigError(
      f"KnowledgeGraph's {name} is {bounds!r}; allowed is a pair (low, high) "
      f"with {least} <= low <= high <= {most}"
    )
