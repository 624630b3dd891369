"""Comparisons give the results of AgentBench's programs."""

import unittest

from environments.os_interaction.judging.comparisons import (
  COMPARISONS,
  find,
  passes,
)

CASES = (
  ("integer-match.py", " 7 ", "7\n", True),
  ("integer-match.py", "7.0", "7", False),
  ("integer-match.py", "seven", "7", False),
  ("integer-match.py", "-07", "-7", True),
  ("string-match.py", " a b\r\n", "a b\n", True),
  ("string-match.py", "a\rb", "a\nb", True),
  ("string-match.py", "A", "a", False),
  ("size-match.py", "4K", "4096", True),
  ("size-match.py", "1M", "1024K", True),
  ("size-match.py", "12B", "12", True),
  ("size-match.py", "4.0K", "4.0K", False),
  ("size-match.py", "4KB", "4K", False),
  ("in.py", "b", "a b c", True),
  ("in.py", "a b c", "b", False),
  ("containing.py", "it is b", "b", True),
  ("containing.py", "b", "it is b", False),
)


class ComparisonsTest(unittest.TestCase):
  def test_cases(self):
    for name, answer, right, expected in CASES:
      with self.subTest(name=name, answer=answer, right=right):
        self.assertIs(passes(COMPARISONS[name], (answer, right)), expected)

  def test_comparisons_are_found_by_name_in_any_folder(self):
    self.assertIs(find("check/in.py"), COMPARISONS["in.py"])
    self.assertIs(find("in.py"), COMPARISONS["in.py"])
    self.assertIsNone(find("check/0.sh"))
    self.assertIsNone(find(""))

  def test_a_missing_right_answer_does_not_pass(self):
    for compare in COMPARISONS.values():
      self.assertFalse(passes(compare, ("7",)))

  def test_a_number_too_long_for_python_does_not_pass(self):
    self.assertFalse(passes(COMPARISONS["integer-match.py"], ("9" * 9999, "9")))
