"""What is computed over the whole batch does not depend on its sharding."""

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

ROOT = pathlib.Path(__file__).parents[2]


class ShardingTest(absltest.TestCase):
  def test_eight_devices_compute_what_one_does(self):
    finished = subprocess.run(
      [sys.executable, "-m", "tests.losses.sharding_program"],
      cwd=ROOT,
      env=os.environ
      | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
      },
      capture_output=True,
      text=True,
      timeout=240,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr)
    differences = json.loads(finished.stdout)
    self.assertLen(differences, 5)
    for name, difference in differences.items():
      with self.subTest(name):
        self.assertLessEqual(difference, 1e-6)


if __name__ == "__main__":
  absltest.main()
