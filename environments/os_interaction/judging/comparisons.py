"""Comparisons of an answer with the right one, by the names of their programs.

AgentBench keeps each as a small program and runs it in the machine. Here they
run outside, which is faster, and the policy cannot tamper with them.
"""

import pathlib
from collections.abc import Callable, Mapping

Comparison = Callable[[str, str], bool]

# As in AgentBench, the first entry that is a suffix of a size is its unit.
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
  """Compares two integers."""
  return int(answer) == int(right)


def is_same_text(answer: str, right: str) -> bool:
  """Compares two texts without the white space around them."""
  return _plain(answer) == _plain(right)


def is_same_size(answer: str, right: str) -> bool:
  """Compares two sizes, such as 4K."""
  return _size(answer) == _size(right)


def is_in(answer: str, right: str) -> bool:
  """Tells whether the answer is part of the right text."""
  return _plain(answer) in _plain(right)


def is_containing(answer: str, right: str) -> bool:
  """Tells whether the right text is part of the answer."""
  return _plain(right) in _plain(answer)


COMPARISONS: Mapping[str, Comparison] = {
  "integer-match.py": is_same_integer,
  "string-match.py": is_same_text,
  "size-match.py": is_same_size,
  "in.py": is_in,
  "containing.py": is_containing,
}


def find(file: str) -> Comparison | None:
  """Finds a comparison by the file name of AgentBench's program."""
  return COMPARISONS.get(pathlib.PurePosixPath(file).name)


def passes(compare: Comparison, parameters: tuple[str, ...]) -> bool:
  """Compares the first two parameters; a comparison that raises fails."""
  if len(parameters) < 2:
    return False
  try:
    return compare(parameters[0], parameters[1])
  except ValueError:  # not a number
    return False


def _plain(text: str) -> str:
  return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _size(text: str) -> int:
  text = text.strip()
  for unit, factor in _UNITS:
    if text.endswith(unit):
      return int(text[: -len(unit)]) * factor
  return int(text)
