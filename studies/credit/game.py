"""Rules of a guessing game: find a thing by questions about its attributes.

Small enough that the advantage of every turn can be computed. A turn is a
question, answered by yes or no, or a guess, which ends the game.
"""

import dataclasses
import itertools
import random
from collections.abc import Mapping

# In the order in which a thing is named: "small striped red circle".
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
  "size": ("tiny", "small", "large", "huge"),
  "pattern": ("plain", "striped", "dotted", "checked"),
  "colour": ("red", "green", "blue", "yellow"),
  "shape": ("circle", "square", "triangle", "star"),
}

REWARDS = {
  "success": "1 for a right guess, else 0",
  "questions": "-1 for each turn before a right guess; all of them if none is",
}

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
