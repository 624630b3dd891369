"""The check of a slice tells which tests failed, and of what they died."""

import json
import pathlib
import tempfile

import pytest
from absl import flags
from absl.testing import absltest, flagsaver

from launch import check_slice
from tests import programs

TESTS = """
import os, time

def test_good(record_property):
  record_property("ms", 5)

def test_bad():
  assert 1 == 2
"""
MARK = "import pytest\npytestmark = pytest.mark.accelerator\n"


class CheckSliceTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    flags.FLAGS.mark_as_parsed()  # another module's may be required
    self.enterContext(flagsaver.flagsaver(topology="v5e-8"))

  def run_tests(self, text, left=100.0):
    file = self.folder / "some_test.py"
    file.write_text(MARK + text)
    return check_slice.run_tests(file, self.folder, left)

  def test_report_has_each_test_with_its_figures_or_its_error(self):
    outcomes = self.run_tests(TESTS)
    check_slice.write_report(self.folder, outcomes, {"topology": "v5e-8"})
    whole = json.loads((self.folder / "report.json").read_text())
    self.assertEqual((whole["passed"], whole["failed"]), (False, ["test_bad"]))
    self.assertEqual(whole["tests"][0]["figures"], {"ms": "5"})
    text = (self.folder / "report.txt").read_text()
    self.assertStartsWith(text, "1 of 2 tests failed\ntopology: v5e-8\n")
    self.assertRegex(
      text, "passed test_good .* ms=5\nFAILED test_bad .*assert 1"
    )

  def test_a_process_that_aborts_is_a_failure_with_what_it_said(self):
    (found,) = self.run_tests(TESTS + "\n  os.abort()\nos.abort()\n")
    self.assertEqual(found.name, "some_test")
    self.assertIn("ended with status -6", found.error)

  def test_a_process_that_hangs_is_ended(self):
    (found,) = self.run_tests("import time\ntime.sleep(60)\n", left=1.0)
    self.assertIn("did not end in 1 s", found.error)

  @pytest.mark.slow
  def test_the_command_runs_the_tests_that_are_marked(self):
    done = programs.run(
      "launch.check_slice",
      f"--report={self.folder}",
      "--only=options_of_the_compiler or each_option",
      deadline_s=300,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    whole = json.loads((self.folder / "report.json").read_text())
    self.assertTrue(whole["passed"], whole)
    self.assertLen(whole["tests"], 2)
