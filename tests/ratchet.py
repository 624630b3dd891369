"""Sizes that may only fall, and how each is measured.

  python -m tests.ratchet

writes sizes that have fallen into `ratchet.json`. Whoever raises a size changes
that file by hand, and says why in the commit. `minutes_of_make_test` is what
`.ci/run` printed last; no test asserts it, since machines differ.
"""

import ast
import collections
import json
import pathlib
import re
import sys

from configs import base

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "tests/ratchet.json"
REST = ("environments", "launch", "configs", "bench", "studies", "tests")
WHEEL = ("agentrl_jax", "environments", "launch", "configs")
CODE = (".py", ".sh", ".js", ".css", ".html")
BY_OTHERS = (
  "files_of_one_turn",  # tests/launch/architecture_test.py
  "files_of_one_update",
  "minutes_of_make_test",  # .ci/run
)


def recorded() -> dict[str, float]:
  """Returns the greatest sizes that are allowed, by name."""
  return json.loads(FILE.read_text())


def measure() -> dict[str, int]:
  """Measures all sizes but those of `BY_OTHERS`."""
  rooms = [
    *sorted((ROOT / "agentrl_jax").glob("*/")),
    *map(ROOT.joinpath, REST),
  ]
  sizes = {
    f"lines/{room.relative_to(ROOT)}": _lines(room)
    for room in rooms
    if (room / "__init__.py").exists()
  }
  sizes["lines/wheel"] = sum(_lines(ROOT / folder) for folder in WHEEL)
  sizes["keys"] = _keys()
  sizes["class_names_used_twice"] = _twins()
  sizes["words_of_docs"] = sum(
    len(page.read_text("utf-8").split())
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
  )
  return sizes


def _lines(folder: pathlib.Path) -> int:
  return sum(
    len(path.read_bytes().splitlines())
    for path in folder.rglob("*")
    if path.suffix in CODE
  )


def _keys() -> int:
  def count(section: object) -> int:
    if not hasattr(section, "items"):
      return 1
    return sum(count(value) for value in section.values())

  return count(base.get_config())


def _twins() -> int:
  names = collections.Counter(
    node.name
    for folder in WHEEL
    for path in (ROOT / folder).rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.ClassDef) and not re.match("_", node.name)
  )
  return sum(number > 1 for number in names.values())


def main() -> None:
  """Writes what has fallen."""
  sizes, before = measure(), recorded() if FILE.exists() else {}
  after = {name: min(n, before.get(name, n)) for name, n in sizes.items()}
  after |= {name: before.get(name, 0) for name in BY_OTHERS}
  FILE.write_text(json.dumps(after, indent=2) + "\n")
  for name, number in sizes.items():
    if number > after[name]:
      sys.stdout.write(f"{name}: {number} is more than {after[name]}\n")


if __name__ == "__main__":
  main()
