"""Statistics of a batch do not depend on its sharding."""

import pytest
from absl.testing import absltest

from agentrl_jax import losses
from tests import eight_devices

# One token at a time, or one row: there is nothing to add up between devices.
# `fused_sharding_test` spreads `fused_token_logprob`.
WITHOUT_STATISTICS = {
  "binary_divergence",
  "cispo",
  "clipped_surrogate",
  "clipped_value_loss",
  "decoupled_surrogate",
  "dppo",
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
  @pytest.mark.slow
  def test_eight_devices_compute_what_one_does(self):
    differences = eight_devices.run("tests.losses.library.sharding_program")
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
