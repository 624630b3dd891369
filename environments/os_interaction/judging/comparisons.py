"""The comparisons that AgentBench's tasks end with, known by name.

AgentBench keeps each as a small program that gets the policy's answer and the
right one, and runs it in the machine. Here they are run outside: faster, and
out of the reach of whoever owns the machine.
"""

import pathlib
from collections.abc import Callable, Mapping

Comparison = Callable[[str, str], bool]

# As in AgentBench the first of these that ends a size is its unit.
_UNITS = (
  ("B", 1),
  ("Byte", 1),
  ("K", 1 << 10),
  ("KB", 1 << 10),
  ("M", 1 << 20),
  ("MB", 1 << 20),
  ("G", 1 << 30),
  ("GB", 1 << 30),
  ("T", 1 << 40),
  ("TB", 1 << 40),
  ("P", 1 << 50),
  ("PB", 1 << 50),
)


def is_same_integer(answer: str, right: str) -> bool:
  """Whether both are integers, and equal."""
  return int(answer) == int(right)


def is_same_text(answer: str, right: str) -> bool:
  """Whether both are the same text, but for white space around it."""
  return _plain(answer) == _plain(right)


def is_same_size(answer: str, right: str) -> bool:
  """Whether both are sizes, as in 4K, and equal."""
  return _size(answer) == _size(right)


def is_in(answer: str, right: str) -> bool:
  """Whether the answer is part of the right text."""
  return _plain(answer) in _plain(right)


def is_containing(answer: str, right: str) -> bool:
  """Whether the right text is part of the answer."""
  return _plain(right) in _plain(answer)


COMPARISONS: Mapping[str, Comparison] = {
  "integer-match.py": is_same_integer,
  "string-match.py": is_same_text,
  "size-match.py": is_same_size,
  "in.py": is_in,
  "containing.py": is_containing,
}


def find(file: str) -> Comparison | None:
  """The comparison that a script's file name stands for, if any."""
  return COMPARISONS.get(pathlib.PurePosixPath(file).name)


def passes(compare: Comparison, parameters: tuple[str, ...]) -> bool:
  """Whether the program would end well; one that breaks does not."""
  if len(parameters) < 2:
    return False
  try:
    return compare(parameters[0], parameters[1])
  except ValueError:  # no number
    return False


def _plain(text: str) -> str:
  return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _size(text: str) -> int:
  text = text.strip()
  for unit, factor in _UNITS:
    if text.endswith(unit):
      return int(text[: -len(unit)]) * factor
  return int(text)
