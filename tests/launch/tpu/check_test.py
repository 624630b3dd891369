"""A check of a slice: what it costs, what it leaves, and what is deleted."""

import json
import pathlib
import sys
import tempfile

import pytest
from absl.testing import parameterized

from tests.launch.tpu.cloud.cloud import Cloud
from tests.launch.tpu.commands_test import dry_run

SLICE = ("--check", "--learner=v5e-8", "--grace=5")
DELETE = "delete demo-learner"
DESCRIBE = """
hosts demo-learner 1
$ gcloud compute tpus queued-resources describe demo-learner --format=value(state.state,
"""  # noqa: E501
ABSENT = """! ERROR: NOT_FOUND: was not found
? 1
--
"""
REST = """| ACTIVE\tv5litepod-8
$ gcloud compute tpus queued-resources create demo-learner
! Created queued resource [demo-learner].
$ gcloud compute tpus queued-resources delete demo-learner
! Deleted queued resource [demo-learner].
$ gcloud compute tpus tpu-vm describe demo-learner
| READY
"""
NEW, THERE = DESCRIBE + ABSENT + REST, DESCRIBE + REST
FOREVER = 100_000


class SliceCheckTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def cloud(self, transcript):
    cloud = Cloud(self.folder, transcript)
    self.addCleanup(cloud.destroy)
    return cloud

  def report(self):
    return json.loads((self.folder / "demo-check.json").read_text())

  @pytest.mark.slow
  def test_the_report_is_fetched_and_the_slice_deleted(self):
    """The check itself is the real one, of one test."""
    cloud = self.cloud(NEW)
    cloud.python.write_text(
      f'#!/bin/sh\nexport JAX_PLATFORMS=cpu\nexec "{sys.executable}" "$@"\n'
    )
    arguments = f"--report={self.folder}", "--", "--only=each_option"
    found, out, told = cloud.run(*SLICE, *arguments)
    self.assertEqual(found, 0, told)
    self.assertEqual(cloud.deeds().count(DELETE), 1)
    self.assertTrue(self.report()["passed"])
    self.assertIn("0 of 1 tests failed", out)
    self.assertIn("costs at most $10 at $1.20 for an hour of a chip", told)
    self.assertIn("demo-learner is deleted", told)
    self.assertEqual(cloud.alive(), [])

  @parameterized.parameters("money", "interrupt", "broken")
  @pytest.mark.slow
  def test_the_slice_is_deleted_whatever_ends_the_check(self, why):
    cloud = self.cloud(NEW)
    if why == "money":  # a slice that is there for 4 s
      self.enterContext(pytest.MonkeyPatch.context()).setenv(
        "AGENTRL_CHECK_S", "2"
      )
      self.enterContext(pytest.MonkeyPatch.context()).setenv(
        "AGENTRL_CHECK_MARGIN_S", "0"
      )
      cloud.start(*SLICE, "--dollars=0.0107", steps=FOREVER)
    elif why == "interrupt":
      cloud.start(*SLICE, steps=FOREVER)
      cloud.until(
        "the check to begin", lambda: "on follow demo-learner" in cloud.deeds()
      )
      cloud.interrupt()
    else:
      cloud.start(*SLICE, BREAK_WITH="7")
    status, _, told = cloud.end()
    self.assertEqual(status, 130 if why == "interrupt" else 1, told)
    self.assertEqual(cloud.deeds().count(DELETE), 1)
    sentence = {
      "money": "as long as $0.0107 allow",
      "interrupt": "the check is ended",
      "broken": "the check ended with status 7 and left no report",
    }
    self.assertIn(sentence[why], told)
    self.assertFalse((self.folder / "demo-check.json").exists())

  def test_a_slice_that_was_there_is_not_touched(self):
    cloud = self.cloud(THERE)
    status, _, told = cloud.run(*SLICE)
    self.assertEqual(status, 1)
    self.assertIn("demo-learner exists already: --keep", told)
    self.assertEqual(cloud.deeds(), [])

  @pytest.mark.slow
  def test_a_slice_that_was_given_is_kept(self):
    cloud = self.cloud(THERE)
    status, _, told = cloud.run(*SLICE, "--keep", BREAK_WITH="7")
    self.assertEqual(status, 1)
    self.assertIn("demo-learner is kept, and costs money", told)
    self.assertNotIn(DELETE, cloud.deeds())

  @parameterized.parameters(
    (("--learner=v5p-64",), "is of one host, .* take v5p-8"),
    (("--learner=2xv5e-8",), "is of one host"),
    (("--learner=v4-8",), "no list price is known of v4: give --price"),
    (("--learner=v6e-8", "--dollars=5"), r"\$5 buy 13 min of v6e-8 .* 20 min"),
    (("--learner=v5e-8", "--dollars=ten"), "--dollars=ten must be a number"),
    (("--learner=v5e-8", "--rollout=v5e-4"), "leave --rollout"),
    (("--local=2",), "--check is for what runs in the cloud"),
  )
  def test_what_no_check_can_be_is_refused(self, options, sentence):
    with self.assertRaisesRegex(AssertionError, sentence):
      dry_run(
        "--check",
        "--name=demo",
        "--zone=z",
        "--project=p",
        "--dry-run",
        *options,
      )
