"""Word problems in GSM8K's form: a short story, a question, a whole number.

A story begins with a count, and each step changes it: `steps` operations of
one digit numbers are easy, those of large numbers need care, or a calculator.
"""

import dataclasses
import operator
import random
from collections.abc import Callable, Sequence

NAMES = (
  "Ana",
  "Ben",
  "Carla",
  "Dan",
  "Ella",
  "Finn",
  "Grace",
  "Hugo",
  "Iris",
  "Jack",
  "Kim",
  "Leo",
  "Mia",
  "Noah",
  "Olga",
  "Paul",
  "Rosa",
  "Sam",
  "Tina",
  "Victor",
)
THINGS = (
  "apples",
  "balls",
  "books",
  "cards",
  "coins",
  "cookies",
  "eggs",
  "flowers",
  "marbles",
  "pencils",
  "pens",
  "plums",
  "shells",
  "stamps",
  "stickers",
  "stones",
  "tickets",
  "toys",
)
BOXES = ("bags", "baskets", "boxes", "packs")
_GAINS = (
  "buys {n} more",
  "finds {n} more",
  "gets {n} more from {friend}",
  "picks up {n} more",
)
_LOSSES = (
  "gives {n} to {friend}",
  "loses {n} of them",
  "sells {n} of them",
  "gives away {n}",
)
OPERATORS: dict[str, Callable[[int, int], int]] = {
  "+": operator.add,
  "-": operator.sub,
  "*": operator.mul,
}


# What the calculator calls its operators. SmolLM2-135M writes "-" in one call
# of a hundred, so that no attempt tries it, and each of these in 18 of them or
# more.
WORDS = {"+": "Add", "-": "Subtract", "*": "Multiply"}


@dataclasses.dataclass(frozen=True)
class Problem:
  """A problem and its solution.

  Attributes:
    text: the story with the question.
    terms: the numbers, in the order of the story.
    operators: `+`, `-` or `*` between them, applied from left to right.
  """

  text: str
  terms: tuple[int, ...]
  operators: tuple[str, ...]

  @property
  def expression(self) -> str:
    """The computation, such as `(7 - 3) * 2`; it decides about the split."""
    text = str(self.terms[0])
    for index, (sign, term) in enumerate(
      zip(self.operators, self.terms[1:], strict=True)
    ):
      needs = sign == "*" and index > 0
      text = f"({text}) * {term}" if needs else f"{text} {sign} {term}"
    return text

  @property
  def partial_results(self) -> list[int]:
    """The count after each step; the last is the answer."""
    count, counts = self.terms[0], []
    for sign, term in zip(self.operators, self.terms[1:], strict=True):
      count = OPERATORS[sign](count, term)
      counts.append(count)
    return counts

  @property
  def answer(self) -> int:
    """The number that is asked for."""
    return self.partial_results[-1]

  @property
  def solution(self) -> str:
    """GSM8K's solution: a line per step, then `#### ` and the answer."""
    lines, count = [], self.terms[0]
    for sign, term, result in zip(
      self.operators, self.terms[1:], self.partial_results, strict=True
    ):
      lines.append(f"{count} {sign} {term} = {result}")
      count = result
    return "\n".join([*lines, f"#### {self.answer}"])


def draw_problem(
  rng: random.Random, *, steps: Sequence[int], largest: int
) -> Problem:
  """Draws a problem.

  Args:
    steps: least and greatest number of operations.
    largest: largest number in the story, 2 or more.
  """
  num_steps = rng.randint(*steps)
  name, friend = rng.sample(NAMES, 2)
  thing = rng.choice(THINGS)
  start = rng.randint(2, largest)
  if rng.random() < 1 / 3:  # a story of boxes begins with a product
    each = rng.randint(2, largest)
    box = rng.choice(BOXES)
    story = [f"{name} has {start} {box} with {each} {thing} in each."]
    terms, operators = [start, each], ["*"]
  else:
    story = [f"{name} has {start} {thing}."]
    terms, operators = [start], []
  while len(operators) < num_steps:
    count = Problem("", tuple(terms), tuple(operators)).partial_results
    left = count[-1] if count else start
    sign = rng.choice("+-" if left > 1 else "+")  # something is left
    term = rng.randint(1, largest if sign == "+" else min(largest, left - 1))
    form = rng.choice(_GAINS if sign == "+" else _LOSSES)
    subject = name if not operators else f"Then {name}"
    story.append(f"{subject} {form.format(n=term, friend=friend)}.")
    terms.append(term)
    operators.append(sign)
  is_product = operators == ["*"]
  asked = "in all" if is_product else "now"
  story.append(f"How many {thing} does {name} have {asked}?")
  return Problem(" ".join(story), tuple(terms), tuple(operators))
