"""Draws questions about a world, words them, and solves them.

The shapes are GrailQA's: paths of hops, the intersection of two paths, and a
count or a superlative of either. A question is kept only if every step matters:
whichever steps are left out of its program, the answer changes, and a count or
a superlative is over two entities or more.
"""

import dataclasses
import functools
import random
from collections.abc import Mapping

from agentrl_jax.data.split import split_of
from environments.knowledgegraph.engines.memory import Evaluation
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
  entities,
  shorter,
)
from environments.knowledgegraph.generation.themes import Attribute, Relation
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.problem import (
  GoldCall,
  Problem,
  gold_programs,
)

KINDS = ("hop", "and", "count", "argmax", "argmin")
MAX_ANSWERS = 30  # of a good question
# By number of paths and content, for the paths' phrases and the superlative.
WORDINGS = {
  (1, "set"): ("What are the {0}?", "Name the {0}."),
  (1, "count"): ("How many {0} are there?", "What is the number of {0}?"),
  (1, "superlative"): (
    "Which of the {0} has the {1}?",
    "Of all {0}, which has the {1}?",
  ),
  (2, "set"): ("Which are both {0}?", "Name those that are both {0}."),
  (2, "count"): (
    "How many are both {0}?",
    "What is the number of those that are both {0}?",
  ),
  (2, "superlative"): (
    "Of those that are both {0}, which has the {1}?",
    "Which has the {1} of those that are both {0}?",
  ),
}


@dataclasses.dataclass(frozen=True)
class Path:
  """An entity, and the relations that are followed from it."""

  start: str
  relations: tuple[Relation, ...]

  @property
  def program(self) -> Program:
    """The entities at the end of the path."""
    program: Program = Entity(self.start)
    for relation in self.relations:
      program = Join(relation.name, program)
    return program

  def phrase(self, names: Mapping[str, str]) -> str:
    text = names[self.start]
    for relation in self.relations:
      text = relation.phrase.format(text)
      if relation is not self.relations[-1]:
        text = f"the {text}"
    return text


@dataclasses.dataclass(frozen=True)
class _Draft:
  """The content of a question before it is worded."""

  kind: str
  paths: tuple[Path, ...]  # of two, the intersection
  attribute: Attribute | None = None

  @property
  def base(self) -> Program:
    """The set that is asked for, counted, or compared."""
    return functools.reduce(And, (path.program for path in self.paths))

  @property
  def program(self) -> Program:
    if self.kind == "count":
      return Count(self.base)
    if self.attribute is not None:
      return Extreme(self.base, self.attribute.name, self.kind == "argmax")
    return self.base


def draw_question(
  rng: random.Random,
  kind: str,
  world: World,
  *,
  num_paths: int,
  num_hops: tuple[int, int],
  split: str,
) -> Problem | None:
  """Draws one candidate; returns None if it is no good question.

  With two paths, the question is about their intersection. Both the content and
  the wording of a question belong to the split.
  """
  type_ = rng.choice(world.theme.relations).range
  target = rng.choice(world.members[type_])
  paths = tuple(
    _draw_path(rng, world, target, type_, rng.randint(*num_hops))
    for _ in range(num_paths)
  )
  attribute = None
  if kind in ("argmax", "argmin"):
    attributes = [a for a in world.theme.attributes if a.domain == type_]
    if not attributes:
      return None
    attribute = rng.choice(attributes)
  draft = _Draft(kind, paths, attribute)
  text = _draw_wording(rng, draft, world.names)
  if {split_of(text), split_of(canonical(draft.program, world.names))} != {
    split
  }:
    return None  # the cheap check goes first: evaluation takes longer
  answers = _good_answers(draft, world)
  if answers is None:
    return None
  return Problem(
    question=text,
    entities={world.names[path.start]: path.start for path in paths},
    answers=answers,
    gold_calls=tuple(_calls(draft)),
    kind=kind,
  )


def canonical(program: Program, names: Mapping[str, str]) -> str:
  """Writes the content of a question, independent of wording and ids."""
  text = str(program)
  for id_ in entities(program):
    text = text.replace(id_, names[id_])
  return text


def every_step_matters(problem: Problem, world: World) -> bool:
  """Checks that the answer changes whichever steps are left out."""
  evaluation = Evaluation(world.graph)
  return not any(
    evaluation.answers(program) == problem.answers
    for program in shorter(gold_programs(problem.gold_calls)[-1])
  )


def _draw_path(
  rng: random.Random, world: World, target: str, type_: str, num_hops: int
) -> Path:
  """Draws a path backwards from the target, which it therefore reaches."""
  start, relations = target, list[Relation]()
  for _ in range(num_hops):
    about = world.graph.about(start)
    candidates = [
      r
      for r in world.theme.relations
      if r.range == type_ and r.reverse in about
    ]
    if not candidates:
      break
    relation = rng.choice(candidates)
    subjects = [x for x in about[relation.reverse] if isinstance(x, str)]
    start, type_ = rng.choice(subjects), relation.domain
    relations.insert(0, relation)
  return Path(start, tuple(relations))


def _good_answers(draft: _Draft, world: World) -> frozenset[str] | None:
  """Returns the answers, or None if the draft is no good question."""
  starts = {world.names[path.start] for path in draft.paths}
  if len(starts) < len(draft.paths) or not all(
    p.relations for p in draft.paths
  ):
    return None  # an entity is named twice, or a path has no hop
  evaluation = Evaluation(world.graph)
  base = evaluation.answers(draft.base)
  answers = evaluation.answers(draft.program)
  least = 1 if draft.kind in ("hop", "and") else 2
  if not least <= len(base) <= MAX_ANSWERS or not answers:
    return None
  if not all(_can_be_walked(path, evaluation) for path in draft.paths):
    return None
  if len(draft.paths) > 1 and any(
    evaluation.answers(path.program) <= base for path in draft.paths
  ):
    return None
  return answers


def _can_be_walked(path: Path, evaluation: Evaluation) -> bool:
  """Checks that tools list each relation of the path where it is followed.

  An entity whose relation leads back to itself is no answer of a query, so no
  relations would be listed.
  """
  program: Program = Entity(path.start)
  for relation in path.relations:
    if relation.name not in evaluation.predicates(program):
      return False
    program = Join(relation.name, program)
  return True


def _draw_wording(
  rng: random.Random, draft: _Draft, names: Mapping[str, str]
) -> str:
  phrases = [path.phrase(names) for path in draft.paths]
  content = "set" if draft.kind in ("hop", "and") else draft.kind
  template = rng.choice(
    WORDINGS[len(phrases), "superlative" if draft.attribute else content]
  )
  return template.format(" and ".join(phrases), _superlative(draft))


def _superlative(draft: _Draft) -> str:
  if draft.attribute is None:
    return ""
  is_date = draft.attribute.range == "type.datetime"
  words = ("latest", "earliest") if is_date else ("highest", "lowest")
  return f"{words[draft.kind == 'argmin']} {draft.attribute.phrase}"


def _calls(draft: _Draft) -> list[GoldCall]:
  """Returns the gold calls, in AgentBench's order."""
  calls: list[GoldCall] = []
  ends: list[str] = []
  num_variables = 0
  for path in draft.paths:
    position = path.start
    for relation in path.relations:
      calls.append(GoldCall("get_relations", (position,)))
      calls.append(GoldCall("get_neighbors", (position, relation.name)))
      position = f"#{num_variables}"
      num_variables += 1
    ends.append(position)
  if len(ends) > 1:
    calls.append(GoldCall("intersection", tuple(ends)))
    ends = [f"#{num_variables}"]
  if draft.kind == "count":
    calls.append(GoldCall("count", (ends[0],)))
  if draft.attribute is not None:
    calls.append(GoldCall("get_attributes", (ends[0],)))
    calls.append(GoldCall(draft.kind, (ends[0], draft.attribute.name)))
  return calls
