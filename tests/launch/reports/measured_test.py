"""Tests of tables that are made from kept measurements."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from agentrl_jax.errors import ConfigError, NotWritten
from launch.experiments import markdown
from launch.reports import measured

FOUND = [
  {"arm": "one, two", "sigma": 0.5, "rate": -1.0, "goal": "2"},
  {"arm": "one, two", "sigma": 0.5, "rate": -2.0, "goal": "2"},
  {"arm": "three", "sigma": 1.0, "rate": 4.0, "goal": ""},
]


class MeasuredTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "found.csv"

  def rows(self, words, found=FOUND):
    lines = measured.table(found, words).splitlines()
    return [
      line.strip("| ").split(" | ") for line in lines if "---" not in line
    ]

  def test_a_line_is_a_column_or_a_row(self):
    cells = "rate = {rate:.1f}\nof = {rate.min:.0f} to {rate.max:.0f}"
    self.assertEqual(
      self.rows(f"by arm\n{cells}"),
      [
        ["arm", "rate", "of"],
        ["one, two", "−1.5", "−2 to −1"],
        ["three", "4.0", "4 to 4"],
      ],
    )
    self.assertEqual(
      self.rows(f"across sigma\n{cells}"),
      [
        ["sigma", "0.5", "1"],
        ["rate", "−1.5", "4.0"],
        ["of", "−2 to −1", "4 to 4"],
      ],
    )

  def test_a_part_in_brackets_may_be_empty(self):
    lines = self.rows("by arm\nrate = {rate:.0f}[ (of {goal})]")
    self.assertEqual(lines[1:], [["one, two", "−2 (of 2)"], ["three", "4"]])

  def test_half_is_that_of_students_t(self):
    values = np.random.default_rng(0).normal(size=5)
    low, high = stats.t.interval(
      0.95, 4, loc=values.mean(), scale=stats.sem(values)
    )
    found = [{"arm": "a", "x": float(x)} for x in values]
    (_, (_, cell)) = self.rows("by arm\nhalf = {x.half:.6f}", found)
    self.assertAlmostEqual(float(cell), (high - low) / 2, places=5)

  def test_a_cell_without_observations_is_empty_and_one_of_nan_a_dash(self):
    found = [
      *FOUND,
      {"arm": "four", "sigma": 2, "rate": float("nan"), "goal": ""},
    ]
    table = measured.table(found, "by arm\ngoal = {goal}\nrate = {rate:.0f}")
    self.assertIn("| three |  | 4 |", table)
    self.assertIn("| four |  | – |", table)
    table = measured.table(FOUND, "by arm\nhalf = {rate:.0f} where sigma=0.5")
    self.assertIn("| three |  |", table + "")

  @parameterized.parameters(
    ("by arm", "for each column or row"),
    ("of arm\nrate = {rate:.1f}", "says `by FIELD`"),
    ("by arm\nrate", "title = format"),
    ("by speed\nrate = {rate:.1f}", "no field 'speed'"),
    ("by arm\nspeed = {speed:.1f}", "names 'speed'"),
    ("by arm where sigma=7\nrate = {rate:.1f}", "no observation has 'sigma=7'"),
    ("by arm\nrate = {rate:.1f} where arm=on", "no observation has 'arm=on'"),
    ("by goal where sigma=0.5\nrate = {rate}", "a text is one"),
    ("", "says `by FIELD`"),
    ("by arm\nx = {rate.std:.2f}", "format '{rate.std:.2f}' .*'std'"),
    ("by arm\nx = {:.2f}", "format '{:.2f}' cannot be filled in"),
    ("by arm\nx = {rate:.2q}", "format '{rate:.2q}' cannot be filled in"),
    ("by arm\nx = {rate", "format '{rate' cannot be filled in"),
    ("by arm\nx = {arm:.2f}", "format '{arm:.2f}' .*'one, two'.*write {x}"),
  )
  def test_words_that_are_none_are_refused(self, words, message):
    with self.assertRaisesRegex(ConfigError, message):
      measured.with_origin(FOUND, words)

  def test_observations_of_no_command_and_short_rows_are_kept(self):
    self.path.write_text("x,y\n1,2\n3\n")
    measured.keep(self.path, [{"x": 5}], command="a")
    kept = measured.read(self.path)
    self.assertEqual(
      [(each["x"], each["y"], each["command"]) for each in kept],
      [("1", "2", ""), ("3", "", ""), ("5", "", "a")],
    )
    self.path.write_text("x,y,command,commit,date\n1\n")
    self.assertEqual(
      measured.read(self.path),
      [{"x": "1", **dict.fromkeys(("y", "command", "commit", "date"), "")}],
    )

  def test_a_command_takes_the_place_of_its_earlier_observations(self):
    measured.keep(self.path, FOUND, command="a")
    measured.keep(self.path, [{"other": 1.5}], command="b")
    measured.keep(self.path, FOUND[2:], command="a")
    kept = measured.read(self.path)
    self.assertEqual([each["command"] for each in kept], ["b", "a"])
    self.assertEqual([each["other"] for each in kept], ["1.5", ""])
    self.assertEqual(kept[1]["arm"], "three")
    for name in ("commit", "date"):
      self.assertTrue(kept[0][name], name)

  def test_an_output_that_cannot_be_added_to_is_refused_before_the_work(self):
    for damaged in (b"x\n\xe9\n", b"x\n" + b"5" * 150_000):
      self.path.write_bytes(damaged)
      with self.assertRaisesRegex(NotWritten, "cannot be read"):
        measured.output(str(self.path))
    with self.assertRaisesRegex(NotWritten, "is no folder"):
      measured.output(str(self.path / "x.csv"))
    self.path.write_text("x,y\n1\n")
    measured.keep(measured.output(str(self.path)), FOUND, command="a")

  def test_a_page_says_where_a_table_comes_from(self):
    measured.keep(self.path, FOUND, command="a")
    page = (
      "<!-- measured: found.csv by arm where sigma=0.5\n"
      "rate = {rate:.1f}\n-->\nold\n<!-- end -->\n"
    )
    filled = markdown.filled(page, self.path.parent)
    self.assertIn("| one, two | −1.5 |", filled)
    self.assertRegex(
      filled, r"\n\n\*Commit \w+.*; 20\d\d-\d\d-\d\d\.\*\n<!-- end"
    )
    self.assertEqual(markdown.filled(filled, self.path.parent), filled)
    self.assertNotIn("copied", filled)

  def test_a_table_names_the_origin_of_its_own_rows_alone(self):
    found = [
      {**each, "commit": f"c{n}", "date": "d"} for n, each in enumerate(FOUND)
    ]
    words = "by arm where arm=three\nrate = {rate:.0f}"
    text = measured.with_origin(found, words)
    self.assertEqual(text.splitlines()[-1], "*Commit c2; d.*")

  def test_what_was_copied_says_so(self):
    copied = {**FOUND[0], "commit": "c", "date": "d", "source": "transcribed"}
    self.assertEqual(
      [measured.origin([copied]), measured.origin([FOUND[2], copied])],
      [
        "*Commit c; d; copied from an older page.*",
        "*Commit c; d; 1 of 2 copied from an older page.*",
      ],
    )


if __name__ == "__main__":
  absltest.main()
