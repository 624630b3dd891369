"""The tables of pages in docs/ are those of the numbers beside them."""

import pathlib

import pytest

from launch.comparisons.markdown import filled

DOCS = pathlib.Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["experiments.md", "siblings.md"])
def test_the_page_says_what_the_numbers_say(name):
  text = (DOCS / name).read_text(encoding="utf-8")
  command = f"python -m launch.report --fill docs/{name}"
  assert filled(text, DOCS) == text, command
