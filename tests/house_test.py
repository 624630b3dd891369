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
# A docstring begins with a verb or a noun of the field, not with a riddle.
RIDDLE = re.compile(r"(What|Who|Which|How|Where|Whether)\b")


def modules(*folders: str) -> list[pathlib.Path]:
  return [
    path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
  ]


class HouseTest(unittest.TestCase):
  def test_a_folder_shows_at_most_a_dozen_modules(self):
    for folder in sorted({path.parent for path in modules(*SOURCE)}):
      names = [p.name for p in folder.glob("*.py") if p.name != "__init__.py"]
      with self.subTest(str(folder.relative_to(ROOT))):
        self.assertLessEqual(len(names), MOST_FILES, names)

  def test_module_docstrings_are_no_riddles(self):
    docstrings = {
      path: ast.get_docstring(ast.parse(path.read_text())) or ""
      for path in modules(*SOURCE)
    }
    riddles = [p for p, text in docstrings.items() if RIDDLE.match(text)]
    self.assertEqual([str(p.relative_to(ROOT)) for p in riddles], [])

  def test_rooms_of_launch_have_no_command_line(self):
    for path in modules("launch"):
      if path.parent == ROOT / "launch":
        continue
      with self.subTest(str(path.relative_to(ROOT))):
        self.assertNotRegex(
          path.read_text(), r"from absl import|import argparse"
        )
