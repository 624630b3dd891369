"""Tests of the tables: their columns, and that each row is its own arm."""

import argparse

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from studies.credit import archer as credit_archer
from studies.credit import exact as credit_exact
from studies.credit import rounds as credit_rounds
from studies.credit import tables as credit_tables
from studies.credit.learned import LEARNED
from tests.studies.credit.exact_test import rules_of

GIVEN = argparse.Namespace(
  reward="success", seeds=2, attempts=4, batches=2, updates=8, rates=[0.3]
)


def rows_of(lines):
  head, *rows = [line for text in lines for line in text.splitlines()]
  cells = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in (head, *rows[1:])
  ]
  for row in cells:
    assert len(row) == len(cells[0]), row
  return cells[1:]


class TablesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rules = rules_of("success")
    self.start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))

  @pytest.mark.slow
  def test_scores_have_a_row_for_each_critic_and_size(self):
    rows = rows_of(credit_tables.score_table(self.start, GIVEN))
    sizes = [f"{4 * 3 * n:,}" for n in credit_tables.FIT_BATCHES]
    expected = [(name, "–") for name in credit_tables.COMPARED]
    expected += [(name, size) for size in sizes for name in LEARNED]
    self.assertEqual([(row[0], row[1]) for row in rows], expected)
    self.assertEqual(rows[0][3], "1.00 ± 0.00")  # the rank of exact ones

  @pytest.mark.slow
  def test_a_round_has_a_row_for_each_arm(self):
    rows = rows_of(credit_tables.round_table(self.start, GIVEN))
    self.assertEqual([row[0] for row in rows], list(credit_rounds.ROUNDS))

  @pytest.mark.slow
  def test_curves_have_a_row_for_each_arm(self):
    rows = rows_of(credit_tables.curve_table(self.start, GIVEN))
    self.assertCountEqual([row[0] for row in rows], credit_archer.ARMS)
    by_arm = {row[0]: row for row in rows}
    self.assertEqual(by_arm["exact"][5], "–")  # it ended long before
    self.assertNotEqual(by_arm["grpo"][5], "–")

  def test_questions_per_game_are_returns_of_the_other_sign(self):
    self.assertEqual(
      credit_tables._shown([-4.0, -4.0], questions=True), "4.000 ± 0.000"
    )


if __name__ == "__main__":
  absltest.main()
