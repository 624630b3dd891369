"""A generated chore: a command is made, and does what was asked of it."""

import random
from collections.abc import Sequence

from environments.os_interaction.tasks.draft import Draft, quote
from environments.os_interaction.tasks.outcomes import CommandMade
from environments.os_interaction.tasks.words import (
  CITIES,
  EVENTS,
  PEOPLE,
  PRODUCTS,
)

NUM_CASES = 3  # that the judge tries, none of them told
_Made = tuple[str, str, list[tuple[list[str], str]]]


def make_command(rng: random.Random, level: int) -> Draft:
  """A program that can be called from anywhere."""
  name = f"{rng.choice(PRODUCTS)}-{rng.choice(PRODUCTS)}"
  draw = rng.choice((_fixed, _labelled, _textual, _numeric)[: 1 + level])
  asked, body, cases = draw(rng)
  path = f"/usr/local/bin/{name}"
  return Draft(
    description=f"Make a command {name} that can be called from any directory, "
    f"by every user, and {asked}.",
    init="mkdir -p /opt",
    example=f"printf '#!/bin/bash\\n%s\\n' {quote(body)} > {path}; "
    f"chmod 755 {path}",
    slip=f"printf '#!/bin/bash\\n%s\\n' {quote(body)} > {path}",
    outcome=CommandMade(name, tuple((tuple(a), said) for a, said in cases)),
  )


def _fixed(rng: random.Random) -> _Made:
  """The same whatever it is given."""
  text = rng.choice(("Hello from", "Greetings from", "This is"))
  text = f"{text} {rng.choice(CITIES)} and {rng.choice(CITIES)}"
  return f"prints {text}", f"echo {text}", [([], text)]


def _labelled(rng: random.Random) -> _Made:
  """Its first argument after a word."""
  city = rng.choice(CITIES)
  cases = [([word], f"{city}: {word}") for word in _words(rng, NUM_CASES)]
  asked = f'prints "{city}: " and then its first argument'
  return asked, f'echo "{city}: $1"', cases


def _textual(rng: random.Random) -> _Made:
  """Something about its arguments as words."""
  given = [_words(rng, rng.randint(1, 4)) for _ in range(NUM_CASES)]
  asked, body, said = rng.choice(
    (
      (
        "prints the number of its arguments",
        "echo $#",
        [str(len(words)) for words in given],
      ),
      (
        "prints its first argument in capital letters",
        'echo "${1^^}"',
        [words[0].upper() for words in given],
      ),
      (
        "prints the last of its arguments",
        'echo "${@: -1}"',
        [words[-1] for words in given],
      ),
      (
        "prints how many characters its first argument has",
        'echo "${#1}"',
        [str(len(words[0])) for words in given],
      ),
    )
  )
  return asked, body, list(zip(given, said, strict=True))


def _numeric(rng: random.Random) -> _Made:
  """Something about its arguments as integers."""
  pairs = [
    [rng.randint(-99, 999), rng.randint(-99, 999)] for _ in range(NUM_CASES)
  ]
  factor = rng.randint(2, 9)
  asked, body, said = rng.choice(
    (
      (
        "prints the sum of its two arguments, which are integers",
        "echo $(($1 + $2))",
        [a + b for a, b in pairs],
      ),
      (
        "prints the product of its two arguments, which are integers",
        "echo $(($1 * $2))",
        [a * b for a, b in pairs],
      ),
      (
        "prints the larger of its two arguments, which are integers",
        "echo $(($1 > $2 ? $1 : $2))",
        [max(pair) for pair in pairs],
      ),
      (
        f"prints {factor} times the difference of its two arguments, the first "
        "minus the second, which are integers",
        f"echo $((($1 - $2) * {factor}))",
        [(a - b) * factor for a, b in pairs],
      ),
    )
  )
  return (
    asked,
    body,
    [
      ([str(n) for n in pair], str(number))
      for pair, number in zip(pairs, said, strict=True)
    ],
  )


def _words(rng: random.Random, count: int) -> list[str]:
  words: Sequence[str] = (*PEOPLE, *PRODUCTS, *EVENTS)
  return [f"{rng.choice(words)}{rng.randint(0, 999)}" for _ in range(count)]
