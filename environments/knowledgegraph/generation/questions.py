"""Questions about a world: drawn from its facts, worded, and solved.

The shapes are GrailQA's: one or two hops, their intersection, and on top of
either a count or a superlative. A question is kept only if every step counts:
whatever steps are left out of its program, the answer is another, and what is
counted or compared is more than one.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

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
from environments.knowledgegraph.generation.schema import Attribute, Relation
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.problem import GoldCall, Problem

KINDS = ("hop", "and", "count", "argmax", "argmin")
MAX_ANSWERS = 30  # more are no good question


@dataclasses.dataclass(frozen=True)
class Path:
  """A thing, and the relations that are followed from it."""

  start: str
  relations: tuple[Relation, ...]

  @property
  def program(self) -> Program:
    """What is at its end."""
    program: Program = Entity(self.start)
    for relation in self.relations:
      program = Join(relation.name, program)
    return program

  def phrase(self, names: Mapping[str, str]) -> str:
    """What is at its end, in words."""
    text = names[self.start]
    for relation in self.relations:
      text = relation.phrase.format(text)
      if relation is not self.relations[-1]:
        text = f"the {text}"
    return text


@dataclasses.dataclass(frozen=True)
class Question:
  """A problem, and what it asks for."""

  problem: Problem
  program: Program

  @property
  def text(self) -> str:
    """As the policy reads it."""
    return self.problem.question

  @property
  def calls(self) -> tuple[GoldCall, ...]:
    """The gold solution."""
    return self.problem.gold_calls


@dataclasses.dataclass(frozen=True)
class _Draft:
  """What a question asks, before it is worded."""

  kind: str
  paths: tuple[Path, ...]  # two are intersected
  attribute: Attribute | None = None

  @property
  def base(self) -> Program:
    """The set that is asked for, counted, or compared."""
    first, *others = (path.program for path in self.paths)
    return And(first, others[0]) if others else first

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
) -> Question | None:
  """One try at a question; None if what was drawn makes no good one.

  Of two paths the intersection is asked for, counted or compared. Both what is
  asked and its wording belong to the split.
  """
  type_ = rng.choice(world.theme.relations).range
  target = rng.choice(world.members[type_])
  paths = tuple(
    _draw_path(rng, world, target, type_, rng.randint(*num_hops))
    for _ in range(num_paths)
  )
  attribute = None
  if kind in ("argmax", "argmin"):
    fitting = [a for a in world.theme.attributes if a.domain == type_]
    if not fitting:
      return None
    attribute = rng.choice(fitting)
  draft = _Draft(kind, paths, attribute)
  text = _worded(rng, draft, world.names)
  if {split_of(text), split_of(_with_names(draft.program, world.names))} != {
    split
  }:
    return None  # before any answer is sought, which takes longer
  answers = _good_answers(draft, world)
  if answers is None:
    return None
  problem = Problem(
    question=text,
    entities={world.names[path.start]: path.start for path in paths},
    answers=answers,
    gold_calls=tuple(_calls(draft)),
    kind=kind,
  )
  return Question(problem, draft.program)


def canonical(question: Question, names: Mapping[str, str]) -> str:
  """What is asked, whatever the words and ids."""
  return _with_names(question.program, names)


def _with_names(program: Program, names: Mapping[str, str]) -> str:
  text = str(program)
  for id_ in entities(program):
    text = text.replace(id_, names[id_])
  return text


def every_step_counts(question: Question, world: World) -> bool:
  """Whether the answer is another, whatever steps are left out."""
  evaluation = Evaluation(world.graph)
  return not any(
    evaluation.answers(program) == question.problem.answers
    for program in shorter(question.program)
  )


def _draw_path(
  rng: random.Random, world: World, target: str, type_: str, num_hops: int
) -> Path:
  """Walks back from the target, so that the path leads to it."""
  start, relations = target, list[Relation]()
  for _ in range(num_hops):
    about = world.graph.about(start)
    fitting = [
      r
      for r in world.theme.relations
      if r.range == type_ and r.reverse in about
    ]
    if not fitting:
      break
    relation = rng.choice(fitting)
    before = [x for x in about[relation.reverse] if isinstance(x, str)]
    start, type_ = rng.choice(before), relation.domain
    relations.insert(0, relation)
  return Path(start, tuple(relations))


def _good_answers(draft: _Draft, world: World) -> frozenset[str] | None:
  """The answers, if there are neither too few nor too many of them."""
  starts = {world.names[path.start] for path in draft.paths}
  if len(starts) < len(draft.paths) or not all(
    p.relations for p in draft.paths
  ):
    return None  # one entity, named twice, or a path that leads nowhere
  evaluation = Evaluation(world.graph)
  base = evaluation.answers(draft.base)
  answers = evaluation.answers(draft.program)
  least = 1 if draft.kind in ("hop", "and") else 2  # no two values are alike
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
  """Whether each relation is listed where it is followed.

  A thing that leads back to itself is no answer midway, and lists nothing.
  """
  program: Program = Entity(path.start)
  for relation in path.relations:
    if relation.name not in evaluation.predicates(program):
      return False
    program = Join(relation.name, program)
  return True


def _worded(rng: random.Random, draft: _Draft, names: Mapping[str, str]) -> str:
  phrases = [path.phrase(names) for path in draft.paths]
  worded: Callable[..., Sequence[str]] = (
    _worded_pair if len(phrases) > 1 else _worded_single
  )
  return rng.choice(worded(draft.kind, _extreme_words(draft), *phrases))


def _worded_single(kind: str, extreme: str, phrase: str) -> Sequence[str]:
  if kind == "count":
    return (
      f"How many {phrase} are there?",
      f"What is the number of {phrase}?",
    )
  if extreme:
    return (
      f"Which of the {phrase} has the {extreme}?",
      f"Of all {phrase}, which has the {extreme}?",
    )
  return f"What are the {phrase}?", f"Name the {phrase}."


def _worded_pair(
  kind: str, extreme: str, one: str, other: str
) -> Sequence[str]:
  both = f"both {one} and {other}"
  if kind == "count":
    return (
      f"How many are {both}?",
      f"What is the number of those that are {both}?",
    )
  if extreme:
    return (
      f"Of those that are {both}, which has the {extreme}?",
      f"Which has the {extreme} of those that are {both}?",
    )
  return f"Which are {both}?", f"Name those that are {both}."


def _extreme_words(draft: _Draft) -> str:
  if draft.attribute is None:
    return ""
  is_date = draft.attribute.range == "type.datetime"
  words = ("latest", "earliest") if is_date else ("highest", "lowest")
  return f"{words[draft.kind == 'argmin']} {draft.attribute.phrase}"


def _calls(draft: _Draft) -> list[GoldCall]:
  """The gold calls, in AgentBench's order."""
  calls: list[GoldCall] = []
  ends: list[str] = []
  num_variables = 0
  for path in draft.paths:
    at = path.start
    for relation in path.relations:
      calls.append(GoldCall("get_relations", (at,)))
      calls.append(GoldCall("get_neighbors", (at, relation.name)))
      at = f"#{num_variables}"
      num_variables += 1
    ends.append(at)
  if len(ends) > 1:
    calls.append(GoldCall("intersection", tuple(ends)))
    ends = [f"#{num_variables}"]
  if draft.kind == "count":
    calls.append(GoldCall("count", (ends[0],)))
  if draft.attribute is not None:
    calls.append(GoldCall("get_attributes", (ends[0],)))
    calls.append(GoldCall(draft.kind, (ends[0], draft.attribute.name)))
  return calls
