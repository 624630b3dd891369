"""An engine on several devices answers as on one."""

import dataclasses

import jax
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.engine.placement import decoding_policy
from tests import eight_devices
from tests.rollout import small
from tests.settings import COMPUTE


class PlacementTest(parameterized.TestCase):
  def test_devices_that_do_not_divide_the_policy(self):
    config = small.policy().config  # 48 channels, 61 vocabulary entries
    for num_devices, vocab_size, allowed in (
      (3, 61, "1"),
      (5, 64, "1 or 2 or 4"),
    ):
      devices = jax.local_devices() * num_devices
      sized = dataclasses.replace(config, vocab_size=vocab_size)
      with self.assertRaisesRegex(
        ConfigError,
        f"mlp_width=48 and model.vocab_size={vocab_size} cannot all be split "
        f"over the {num_devices} devices.* give it {allowed} of them",
      ):
        decoding_policy(sized, COMPUTE, devices)

  @pytest.mark.slow
  @pytest.mark.timeout(300)
  def test_more_devices_than_heads_answer_as_one(self):
    self._check_more_devices("shared", "int8")

  @pytest.mark.full
  @pytest.mark.timeout(900)
  def test_in_every_case_and_with_weights_from_everywhere(self):
    found = self._check_more_devices()
    self.assertLen(found["cases"], 10)
    self.assertLen(found["weights"], 3)
    for weights in found["weights"]:
      alone, *others = weights["answers"]
      self.assertEqual(others, [alone] * 3)
      for layout in weights["layouts"].values():
        self.assertEqual(layout["mlp"], 1 / 8)
        self.assertEqual(layout["queries"], 1 / 8)

  def _check_more_devices(self, *cases):
    found = eight_devices.run(
      "tests.rollout.engine.more_devices_program", *cases, deadline_s=800
    )
    half, eighth = 1 / 2, 1 / 8
    for name, case in found["cases"].items():
      with self.subTest(name):
        alone, shared = case["answers"]
        self.assertEqual(alone, shared)
        self.assertLen({tuple(sampled) for sampled, _ in alone}, 4)
        heads = 1 if name == "one head" else half
        self.assertEqual(
          case["shares"],
          {
            "mlp": eighth,
            "vocabulary": eighth,
            "queries": {"copied": half, "latents": half, "one head": 1}.get(
              name, eighth
            ),
            "keys": heads,
            "cache": 1 if name == "latents" else heads,
          },
        )
    return found
