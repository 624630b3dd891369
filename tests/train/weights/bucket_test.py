"""Checkpoints in a bucket are complete or absent."""

import importlib.util
import json

import pytest
from absl.testing import absltest

from tests import programs

NEEDED = ("gcp_storage_emulator", "gcsfs")


@pytest.mark.full
class BucketTest(absltest.TestCase):
  def test_a_step_that_was_not_committed_is_not_there(self):
    missing = [n for n in NEEDED if importlib.util.find_spec(n) is None]
    if missing:
      self.skipTest(f"{' and '.join(missing)} are not installed")
    done = programs.run("tests.train.weights.bucket_program", deadline_s=280)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    self.assertIn("commit_success.txt", found["marks"])
    self.assertEqual(found["steps"], [0])
    self.assertEqual(found["position"], {"at": 0})
    self.assertTrue(found["same"])
