"""Draws questions about a world, words them, and solves them.

The shapes are GrailQA's: paths of hops, the intersection of two paths, and a
count or a superlative of either. A question is kept only if every step matters:
whichever steps are left out of its program, the answer changes, and a count or
a superlative is over two entities or more.
"""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.split import split_of
from environments.knowledgegraph.engines.memory import ProgramEvaluation
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
  KGProblem,
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

  def program(self, base: Program) -> Program:
    """Returns what is asked about `base`."""
    if self.kind == "count":
      return Count(base)
    if self.attribute is not None:
      return Extreme(base, self.attribute.name, self.kind == "argmax")
    return base


class KnownWorld:
  """A world, and what many draws of questions about it need again."""

  def __init__(self, world: World):
    self.world = world
    self.evaluation = ProgramEvaluation(world.graph)
    self._steps: dict[tuple[str, str], list[tuple[Relation, list[str]]]] = {}

  def steps_to(
    self, entity: str, type_: str
  ) -> list[tuple[Relation, list[str]]]:
    """Returns relations that lead to an entity of the type, with subjects."""
    steps = self._steps.get((entity, type_))
    if steps is None:
      about = self.world.graph.about(entity)
      steps = self._steps[entity, type_] = [
        (r, [x for x in about[r.reverse] if isinstance(x, str)])
        for r in self.world.theme.relations
        if r.range == type_ and r.reverse in about
      ]
    return steps


def draw_question(
  rng: random.Random,
  kind: str,
  known: KnownWorld,
  *,
  num_paths: int,
  num_hops: tuple[int, int],
  split: str,
) -> KGProblem | None:
  """Draws one candidate; returns None if it is no good question.

  With two paths, the question is about their intersection. Both the content and
  the wording of a question belong to the split.
  """
  world, counts = known.world, range(num_hops[0], num_hops[1] + 1)
  type_ = rng.choice(world.theme.relations).range
  target = rng.choice(world.members[type_])
  paths = tuple(
    _draw_path(rng, known, target, type_, rng.choice(counts))
    for _ in range(num_paths)
  )
  attribute = None
  if kind in ("argmax", "argmin"):
    attributes = [a for a in world.theme.attributes if a.domain == type_]
    if not attributes:
      return None
    attribute = rng.choice(attributes)
  draft = _Draft(kind, paths, attribute)
  template = _draw_template(rng, draft)
  # The cheap checks go first: evaluation takes longer.
  if not all(p.relations for p in paths) or not _differ(paths, world.names):
    return None
  text = _wording(template, draft, world.names)
  if split_of(text) != split:
    return None
  base = draft.base
  program = draft.program(base)
  if split_of(canonical(program, world.names)) != split:
    return None
  answers = _good_answers(draft, base, program, known.evaluation)
  if answers is None:
    return None
  return KGProblem(
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


def every_step_matters(
  problem: KGProblem, evaluation: ProgramEvaluation
) -> bool:
  """Checks that the answer changes whichever steps are left out."""
  return not any(
    evaluation.answers(program) == problem.answers
    for program in shorter(gold_programs(problem.gold_calls)[-1])
  )


def _draw_path(
  rng: random.Random, known: KnownWorld, target: str, type_: str, num_hops: int
) -> Path:
  """Draws a path backwards from the target, which it therefore reaches."""
  start, relations = target, list[Relation]()
  for _ in range(num_hops):
    steps = known.steps_to(start, type_)
    if not steps:
      break
    relation, subjects = rng.choice(steps)
    start, type_ = rng.choice(subjects), relation.domain
    relations.append(relation)
  return Path(start, tuple(reversed(relations)))


def _differ(paths: Sequence[Path], names: Mapping[str, str]) -> bool:
  """Checks that no entity is named twice."""
  return len({names[path.start] for path in paths}) == len(paths)


def _good_answers(
  draft: _Draft, base: Program, program: Program, evaluation: ProgramEvaluation
) -> frozenset[str] | None:
  """Returns the answers, or None if the draft is no good question."""
  members = evaluation.answers(base)
  least = 1 if draft.kind in ("hop", "and") else 2
  if not least <= len(members) <= MAX_ANSWERS:
    return None
  answers = members if program is base else evaluation.answers(program)
  if not answers:
    return None
  if not all(_can_be_walked(path, evaluation) for path in draft.paths):
    return None
  if len(draft.paths) > 1 and any(
    evaluation.answers(path.program) <= members for path in draft.paths
  ):
    return None
  return answers


def _can_be_walked(path: Path, evaluation: ProgramEvaluation) -> bool:
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


def _draw_template(rng: random.Random, draft: _Draft) -> str:
  content = "set" if draft.kind in ("hop", "and") else draft.kind
  content = "superlative" if draft.attribute else content
  return rng.choice(WORDINGS[len(draft.paths), content])


def _wording(template: str, draft: _Draft, names: Mapping[str, str]) -> str:
  phrases = [path.phrase(names) for path in draft.paths]
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
