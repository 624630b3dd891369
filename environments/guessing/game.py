"""Rules of the guessing game: things, questions, and the things that fit.

Pure functions, without messages or turns. The environment, its expert and
`studies.credit`, which enumerates the game, share them.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

# In the order in which a thing is named: "small striped red circle".
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
  "size": ("tiny", "small", "large", "huge"),
  "pattern": ("plain", "striped", "dotted", "checked"),
  "colour": ("red", "green", "blue", "yellow"),
  "shape": ("circle", "square", "triangle", "star"),
}
MAX_ATTRIBUTES = len(ATTRIBUTES)
NUM_VALUES = 4  # of each attribute
YES, NO = "Yes.", "No."  # replies to a question

Thing = tuple[str, ...]  # a value of each attribute
Question = tuple[str, str]  # attribute and value


@dataclasses.dataclass(frozen=True)
class GuessingGame:
  """Things to choose from, in the order that the policy reads, and one."""

  names: tuple[str, ...]  # of the attributes
  things: tuple[Thing, ...]
  secret: int  # position in `things`

  @property
  def questions(self) -> tuple[Question, ...]:
    """All questions, by attribute and value."""
    return tuple(
      (name, value) for name in self.names for value in ATTRIBUTES[name]
    )

  def has(self, thing: int, question: Question) -> bool:
    """Answers a question about a thing."""
    name, value = question
    return self.things[thing][self.names.index(name)] == value

  def fitting(self, question: Question, answer: bool) -> frozenset[int]:
    """Returns the things of which a question has this answer."""
    return frozenset(
      thing
      for thing in range(len(self.things))
      if self.has(thing, question) == answer
    )


def draw_game(
  num_things: int, num_attributes: int, rng: random.Random
) -> GuessingGame:
  """Draws things that all differ, in a random order, and one of them."""
  names = tuple(ATTRIBUTES)[-num_attributes:]
  every = list(itertools.product(*(ATTRIBUTES[name] for name in names)))
  things = tuple(rng.sample(every, num_things))
  return GuessingGame(names, things, rng.randrange(num_things))


def best_question(game: GuessingGame, possible: Iterable[int]) -> Question:
  """Returns the question that comes closest to halving the possible things.

  The first of those that are equally good, so that equal games are played
  alike.
  """
  kept = frozenset(possible)

  def larger_half(question: Question) -> int:
    num_yes = len(kept & game.fitting(question, True))
    return max(num_yes, len(kept) - num_yes)

  return min(game.questions, key=larger_half)


def describe(things: Sequence[Thing]) -> str:
  """Returns a numbered line per thing, from 1."""
  return "\n".join(
    f"{number}: {' '.join(thing)}" for number, thing in enumerate(things, 1)
  )
