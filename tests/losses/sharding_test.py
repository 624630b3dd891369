"""What is computed over the whole batch does not depend on its sharding."""

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

from agentrl_jax import losses

ROOT = pathlib.Path(__file__).parents[2]

# One token at a time, or one row: there is nothing to add up between devices.
# `fused_sharding_test` spreads `fused_token_logprob`.
WITHOUT_STATISTICS = {
  "cispo",
  "clipped_surrogate",
  "clipped_value_loss",
  "decoupled_surrogate",
  "entropy",
  "first_of_turn",
  "fused_token_logprob",
  "gmpo",
  "gspo_token_log_ratio",
  "implicit_reward",
  "k1",
  "k2",
  "k3",
  "kl_penalised_reward",
  "log_ratio",
  "masked_weight",
  "negative_log_likelihood",
  "reinforce",
  "sapo",
  "sequence_log_ratio",
  "stale_failure_weight",
  "token_logprob",
  "truncated_weight",
  "unbiased_kl",
  "unseen_tasks",
  "with_gradient_of",
}


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
    functions = {
      name
      for name in losses.__all__
      if not isinstance(getattr(losses, name), type)
    }
    compared = {name.partition("/")[0] for name in differences}
    self.assertEqual(compared, functions - WITHOUT_STATISTICS)
    for name, difference in differences.items():
      with self.subTest(name):
        self.assertLessEqual(difference, 1e-6)


if __name__ == "__main__":
  absltest.main()
