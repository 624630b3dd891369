"""The house rules that a program can check: folders, prose, command lines."""

import ast
import pathlib
import re
import unittest

import pytest

pytestmark = pytest.mark.smoke

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = ("agentrl_jax", "environments", "configs", "launch")
MOST_FILES = 12
MOST_LINES = 600
# A docstring begins with a verb or a noun of the field, not with a riddle.
RIDDLE = re.compile(r"(What|Who|Which|How|Where|Whether)\b")


def modules(*folders: str) -> list[pathlib.Path]:
  return [
    path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
  ]


def first_lines(path: pathlib.Path) -> list[str]:
  """First lines of all docstrings of a file."""
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  nodes = ast.walk(ast.parse(path.read_text()))
  found = (ast.get_docstring(n) for n in nodes if isinstance(n, kinds))
  return [text.partition("\n")[0] for text in found if text]


def is_for_command_lines(path: pathlib.Path) -> bool:
  """Whether `python -m` runs the module, or it is the config of a run."""
  text = path.read_text()
  is_config = path.parent.name == "configs" and "def get_config(" in text
  return is_config or 'if __name__ == "__main__":' in text


class HouseTest(unittest.TestCase):
  def test_a_folder_shows_at_most_a_dozen_modules(self):
    """Commands and configs of runs are read one at a time, by name."""
    for folder in sorted({p.parent for p in modules(*SOURCE, "bench")}):
      names = [
        p.name
        for p in folder.glob("*.py")
        if p.name != "__init__.py" and not is_for_command_lines(p)
      ]
      with self.subTest(str(folder.relative_to(ROOT))):
        self.assertLessEqual(len(names), MOST_FILES, names)

  @pytest.mark.slow
  def test_docstrings_are_no_riddles(self):
    riddles = [
      f"{path.relative_to(ROOT)}: {first}"
      for path in modules(*SOURCE)
      for first in first_lines(path)
      if RIDDLE.match(first)
    ]
    self.assertEqual(riddles, [])

  def test_a_file_has_at_most_600_lines(self):
    lengths = {p: len(p.read_text().splitlines()) for p in modules(*SOURCE)}
    self.assertEqual([p for p, n in lengths.items() if n > MOST_LINES], [])

  def test_text_is_printed_by_one_door(self):
    made = [
      str(path.relative_to(ROOT))
      for path in modules("agentrl_jax", "environments", "launch", "bench")
      if re.search(r"\bConsole\(|rich import print", path.read_text())
    ]
    self.assertEqual(made, ["launch/processes/terminal.py"])

  def test_rooms_of_launch_have_no_command_line(self):
    for path in modules("launch"):
      shared = ROOT / "launch/config/command_line.py"  # by all commands
      at_top = path.parent == ROOT / "launch" or path.name == "__main__.py"
      if at_top or path == shared:
        continue
      with self.subTest(str(path.relative_to(ROOT))):
        self.assertNotRegex(
          path.read_text(), r"from absl import|import argparse"
        )
