"""The tables of docs/experiments.md are those of the numbers beside it."""

import pathlib

from launch.comparisons.markdown import filled

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "experiments.md"


def test_the_page_says_what_the_numbers_say():
  text = PAGE.read_text(encoding="utf-8")
  assert filled(text, PAGE.parent) == text, "python -m launch.report --fill"
