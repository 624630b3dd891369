"""Error rates of docs/sweeps.md are those that are simulated."""

import contextlib
import io
import pathlib
import re

import pytest

from studies import error_rates

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "sweeps.md"


def rows(text):
  """Returns the numbers of each row that has percentages of 3, 5, 8 seeds."""
  return {
    cells[0].strip(): [float(x) for x in re.findall(r"[0-9.]+", "|".join(rest))]
    for line in text.splitlines()
    if line.startswith("| ") and len(cells := line.split("|")[1:-1]) == 4
    for rest in (cells[1:],)
    if re.fullmatch(r"[0-9.,% |]+", "|".join(rest))
  }


def simulated(repetitions):
  said = io.StringIO()
  with contextlib.redirect_stdout(said):
    error_rates.main([f"--repetitions={repetitions}"])
  return rows(said.getvalue())


def test_the_page_has_a_row_for_everything_that_is_simulated():
  found, page = simulated(2), rows(PAGE.read_text(encoding="utf-8"))
  assert found.keys() <= page.keys()
  assert all(len(found[name]) == len(page[name]) for name in found)


@pytest.mark.slow
def test_rates_of_the_page_are_those_of_the_simulation():
  found, page = simulated(400), rows(PAGE.read_text(encoding="utf-8"))
  for name, rates in found.items():
    # Three standard errors of the difference of two simulations: of some 4,000
    # levels at two thirds, or of some 400 comparisons at 10 %.
    tolerance = 3 if name[0].isdigit() else 6
    for rate, said in zip(rates, page[name], strict=True):
      assert abs(rate - said) <= tolerance, name
