"""Comparisons of an answer with the right one, by the names of their programs.

AgentBench keeps each as a small program and runs it in the machine. Here they
run outside, which is faster, and the policy cannot tamper with them.
"""

import pathlib
from collections.abc import Callable, Mapping

Comparison = Callable[[str, str], bool]

COMPARISONS: Mapping[str, Comparison] = {
  "integer-match.py": lambda answer, right: int(answer) == int(right),
  "string-match.py": lambda answer, right: _plain(answer) == _plain(right),
  "size-match.py": lambda answer, right: _size(answer) == _size(right),
  "in.py": lambda answer, right: _plain(answer) in _plain(right),
  "containing.py": lambda answer, right: _plain(right) in _plain(answer),
}
# AgentBench's KB, MB and so on are never read: B, which it tries first, leaves
# 4K of 4KB, which is no integer.
_UNITS = {
  "B": 1,
  "Byte": 1,
  "K": 1 << 10,
  "M": 1 << 20,
  "G": 1 << 30,
  "T": 1 << 40,
  "P": 1 << 50,
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
  for unit, factor in _UNITS.items():
    if text.endswith(unit):
      return int(text.removesuffix(unit)) * factor
  return int(text)
