"""Tests the two rules of grading."""

import hashlib
import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from environments.dbbench.grading import is_right, rows_hash, tables_hash

cells = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 2))


def md5(text: str) -> str:
  return hashlib.md5(text.encode()).hexdigest()


class HashTest(unittest.TestCase):
  def test_is_mysqls_formula(self):
    short = sorted([md5("a,1")[:5], md5("b")[:5]])
    self.assertEqual(rows_hash([("a", "1"), ("b", None)]), md5(",".join(short)))

  def test_no_rows_have_no_hash(self):
    self.assertEqual(rows_hash([]), "None")

  @given(st.lists(st.tuples(cells, cells), max_size=6), st.randoms())
  @settings(max_examples=25)
  def test_order_does_not_count(self, rows, rng):
    shuffled = rng.sample(rows, len(rows))
    self.assertEqual(rows_hash(rows), rows_hash(shuffled))

  def test_repeated_rows_count(self):
    self.assertNotEqual(rows_hash([("a",)]), rows_hash([("a",), ("a",)]))

  def test_order_of_tables_does_not_count(self):
    first, second = [("a",)], [("b",)]
    self.assertEqual(tables_hash([first, second]), tables_hash([second, first]))
    self.assertEqual(
      tables_hash([first, second]),
      "_".join(sorted(map(rows_hash, (first, second)))),
    )


class AnswerTest(unittest.TestCase):
  def test_right(self):
    for answer, label in (
      (["Oslo"], ["Oslo"]),
      (["'Oslo'"], ["Oslo"]),
      ([" 12 "], ["12.0"]),
      (["12.005"], ["12"]),
      (["45,000"], ["45000"]),
      (["45%"], ["45"]),
      ([7], ["7"]),
      ("7", ["7"]),
      ("[(7,), (8.0,)]", ["8", "7"]),
      ('["a", "b"]', ["b", "a"]),
      (["2", "1"], ["1.0", "2.0"]),
      (["b", "a", "a"], ["a", "b"]),
      (["March 19, 1998"], ["March 19 1998"]),
      (["none"], ["none"]),
      (["0"], ["none"]),
      (["NULL"], ["none"]),
    ):
      with self.subTest(answer=answer, label=label):
        self.assertTrue(is_right(answer, label))
        self.assertTrue(is_right(answer, label, upstream_quirks=True))

  def test_wrong(self):
    for answer, label in (
      (["Oslo"], ["Rome"]),
      (["oslo"], ["Oslo"]),
      (["12.02"], ["12"]),
      (["1", "1"], ["1", "2"]),
      (["1"], ["1", "2"]),
      (["1", "2"], ["1"]),
      (["a"], ["a", "b"]),
      ([], ["0"]),
      ([], ["1"]),
      ([], ["a", "b"]),
      ("", ["1"]),
      ({"a": 1}, ["1"]),
      (["+inf"], ["12"]),
      (["__import__('os')"], ["1"]),
      ("[1 for _ in (1,)]", ["1"]),
    ):
      with self.subTest(answer=answer, label=label):
        self.assertFalse(is_right(answer, label))
        self.assertFalse(is_right(answer, label, upstream_quirks=True))

  def test_null_words_equal_zero_only_for_upstream(self):
    words = ("", "none", "undefined", "None", "nan", None)
    for answer in ("", *([word] for word in words)):
      with self.subTest(answer=answer):
        self.assertFalse(is_right(answer, ["0"]))
        self.assertTrue(is_right(answer, ["0"], upstream_quirks=True))

  def test_an_empty_answer_is_never_right(self):
    for answer in ([""], "", [], ["''"]):
      for label in (["none"], ["0"], [""]):
        with self.subTest(answer=answer, label=label):
          self.assertFalse(is_right(answer, label))

  def test_hostile_text_is_only_text(self):
    for answer in ("[" * 100_000, "[" * 3000, "[" + "9" * 5000 + "]", "[1"):
      with self.subTest(answer=answer[:10]):
        self.assertFalse(is_right(answer, ["1"]))

  @given(st.lists(numbers, min_size=1, max_size=5), st.randoms())
  @settings(max_examples=25)
  def test_numbers_pair_up_in_any_order(self, label, rng):
    answer = [str(x) for x in rng.sample(label, len(label))]
    self.assertTrue(is_right(answer, [str(x) for x in label]))
    answer[0] = str(float(answer[0]) + 5e6)
    self.assertFalse(is_right(answer, [str(x) for x in label]))
