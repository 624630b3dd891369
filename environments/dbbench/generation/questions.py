"""Draws questions about a table, with the statements that answer them.

There is one function per kind. It returns None if the question would be poor:
no row matches, the answer is long, or it is right without casting numbers.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping

from environments.dbbench.generation import words
from environments.dbbench.generation.statement import (
  Delete,
  Insert,
  Select,
  Statement,
  Update,
  Where,
)
from environments.dbbench.generation.tables import Topic, draw_numbers

MAX_ANSWERS = 2  # of a question with several


@dataclasses.dataclass(frozen=True)
class Question:
  """A question and the statement that answers it."""

  text: str
  statement: Statement


def draw_question(
  rng: random.Random, kind: str, topic: Topic
) -> Question | None:
  """Draws a question of the kind; None if it would be poor."""
  return KINDS[kind](rng, topic)


def _lookup(rng: random.Random, topic: Topic) -> Question:
  column = rng.choice((*topic.texts, *topic.numbers))
  where = _name_condition(rng, topic)
  text = rng.choice(("What is the {0} of {1}?", "Which {0} does {1} have?"))
  return Question(
    text.format(column, where.value), Select(topic.table.name, where, column)
  )


def _comparison(rng: random.Random, topic: Topic) -> Question | None:
  where = _number_condition(rng, topic)
  if where is None or len(topic.where(where, topic.key)) > MAX_ANSWERS:
    return None
  text = f"Which {topic.plural} have {_phrase(where)}?"
  return Question(text, Select(topic.table.name, where, topic.key))


def _count(rng: random.Random, topic: Topic) -> Question | None:
  draw_condition = rng.choice((_text_condition, _number_condition))
  where = draw_condition(rng, topic)
  if where is None:
    return None
  text = f"How many {topic.plural} have {_phrase(where)}?"
  return Question(
    text, Select(topic.table.name, where, topic.key, aggregate="COUNT")
  )


def _aggregate(
  function: str, adjective: str
) -> Callable[[random.Random, Topic], Question | None]:
  """Returns a function that draws "What is the total price?" and the like."""

  def draw(rng: random.Random, topic: Topic) -> Question | None:
    column = rng.choice(topic.numbers)
    where = _text_condition(rng, topic) if rng.random() < 0.5 else None
    cells = topic.where(where, column)
    if len(cells) < 2 or not _is_fair(function, cells):
      return None
    scope = f" of {topic.plural} with {_phrase(where)}" if where else ""
    text = rng.choice(("What is the {0} {1}{2}?", "Give the {0} {1}{2}."))
    return Question(
      text.format(adjective, column, scope or f" of all {topic.plural}"),
      Select(topic.table.name, where, column, aggregate=function),
    )

  return draw


def _ranking(rng: random.Random, topic: Topic) -> Question | None:
  column = rng.choice(topic.numbers)
  descending = rng.random() < 0.5
  where = _text_condition(rng, topic) if rng.random() < 0.3 else None
  cells = topic.where(where, column)
  if len(cells) < 2 or not _is_fair("MAX" if descending else "MIN", cells):
    return None
  adjective = "highest" if descending else "lowest"
  scope = f" with {_phrase(where)}" if where else ""
  return Question(
    f"Which of the {topic.plural}{scope} has the {adjective} {column}?",
    Select(
      topic.table.name, where, topic.key, order_by=column, descending=descending
    ),
  )


def _insert(rng: random.Random, topic: Topic) -> Question:
  values = {topic.key: topic.new_name}
  values |= {c: rng.choice(words.TEXT_COLUMNS[c]) for c in topic.texts}
  values |= {c: draw_numbers(rng, 1)[0] for c in topic.numbers}
  rest = topic.table.columns[1:]
  values_text = " and ".join(f"{column} {values[column]}" for column in rest)
  text = rng.choice(("Add the {0} {1} with {2}.", "Insert {0} {1}, {2}."))
  return Question(
    text.format(topic.key, topic.new_name, values_text),
    Insert(
      topic.table.name,
      values=tuple(values[column] for column in topic.table.columns),
    ),
  )


def _update(rng: random.Random, topic: Topic) -> Question | None:
  column = rng.choice((*topic.texts, *topic.numbers))
  value = (
    rng.choice(words.TEXT_COLUMNS[column])
    if column in topic.texts
    else draw_numbers(rng, 1)[0]
  )
  if rng.random() < 0.6:
    where = _name_condition(rng, topic)
    text = f"Set the {column} of {where.value} to {value}."
  else:
    where = _text_condition(rng, topic)
    rows = f"all {topic.plural} with {_phrase(where)}"
    text = f"Set the {column} of {rows} to {value}."
  if where.column == column or value in topic.where(where, column):
    return None
  return Question(text, Update(topic.table.name, where, column, value))


def _delete(rng: random.Random, topic: Topic) -> Question | None:
  draw_condition = rng.choice(
    (_name_condition, _text_condition, _number_condition)
  )
  where = draw_condition(rng, topic)
  if where is None:
    return None
  if where.column == topic.key:
    text = f"Delete the {topic.key} {where.value}."
  else:
    text = f"Delete all {topic.plural} with {_phrase(where)}."
  if len(topic.where(where, topic.key)) == len(topic.table.rows):
    return None
  return Question(text, Delete(topic.table.name, where))


KINDS: Mapping[str, Callable[[random.Random, Topic], Question | None]] = {
  "lookup": _lookup,
  "comparison": _comparison,
  "count": _count,
  "sum": _aggregate("SUM", "total"),
  "avg": _aggregate("AVG", "average"),
  "max": _aggregate("MAX", "highest"),
  "min": _aggregate("MIN", "lowest"),
  "ranking": _ranking,
  "insert": _insert,
  "update": _update,
  "delete": _delete,
}


def _name_condition(rng: random.Random, topic: Topic) -> Where:
  return Where(topic.key, "=", rng.choice(topic.column(topic.key)))


def _text_condition(rng: random.Random, topic: Topic) -> Where:
  column = rng.choice(topic.texts)
  return Where(column, "=", rng.choice(topic.column(column)))


def _number_condition(rng: random.Random, topic: Topic) -> Where | None:
  """Draws a bound that other rows would meet if compared as text."""
  column = rng.choice(topic.numbers)
  where = Where(
    column, rng.choice("><"), draw_numbers(rng, 1)[0], is_number=True
  )
  cells = topic.column(column)
  matches = topic.where(where, column)
  compare = str.__gt__ if where.operator == ">" else str.__lt__
  text_matches = [cell for cell in cells if compare(cell, where.value)]
  fair = 0 < len(matches) < len(cells) and len(matches) != len(text_matches)
  return where if fair and where.value not in cells else None


def _phrase(where: Where) -> str:
  """Returns the condition as text: "price above 20", "city Oslo"."""
  phrases = {">": "above ", "<": "below ", "=": ""}
  return f"{where.column} {phrases[where.operator]}{where.value}"


def _is_fair(function: str, cells: list[str]) -> bool:
  """Checks that the answer needs a cast, and that an average is short."""
  numbers = [int(cell) for cell in cells]
  if function == "AVG":
    return 2 * sum(numbers) % len(numbers) == 0
  if function == "MAX":
    return max(cells) != str(max(numbers))
  if function == "MIN":
    return min(cells) != str(min(numbers))
  return True
