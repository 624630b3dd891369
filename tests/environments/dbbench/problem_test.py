"""Tables as frozen data."""

import unittest

from environments.dbbench.problem import Problem, Table


class TableTest(unittest.TestCase):
  def test_a_row_of_another_width_is_refused(self):
    with self.assertRaisesRegex(ValueError, "2 columns, but a row of 1"):
      Table("t", ("a", "b"), (("1",),))

  def test_columns_that_a_database_refuses_are_renamed(self):
    table = Table("t", ("", "Name ", "name", "b"), ())
    self.assertEqual(table.sql_columns, ("1", "Name", "name_3", "b"))


class ProblemTest(unittest.TestCase):
  def test_three_types_change_tables(self):
    changing = [
      kind
      for kind in ("INSERT", "UPDATE", "DELETE", "counting", "other")
      if Problem(kind, (), "?").is_mutation
    ]
    self.assertEqual(changing, ["INSERT", "UPDATE", "DELETE"])


if __name__ == "__main__":
  unittest.main()
