"""Each policy slot is measured in all and by task, as loops over tokens
would.
"""

import numpy as np
from absl.testing import absltest

from agentrl_jax.data.batch import Batch
from agentrl_jax.train.metrics import measure_policy_slots, policy_slot_numbers

SHAPE = (3, 17)
TASKS = {"a": 0, "b": 1}


def _sample_size(weight_T):
  return weight_T.sum() ** 2 / (len(weight_T) * (weight_T**2).sum())


class PolicySlotMetricsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    self.x_BT = draw.normal(0, 0.3, SHAPE).astype(np.float32)
    self.mask_BT = draw.random(SHAPE) < 0.6
    self.policy_slot_BT = draw.integers(0, 2, SHAPE).astype(np.int32)
    self.task_BT = draw.integers(0, 2, SHAPE).astype(np.int32)

  def _numbers(self, task_BT, x_BT=None):
    x_BT = self.x_BT if x_BT is None else x_BT
    zero = np.zeros(SHAPE, np.int32)
    batch = Batch(
      zero,
      zero,
      zero,
      self.mask_BT,
      zero,
      zero,
      zero,
      policy_slot=self.policy_slot_BT,
    )
    measured = measure_policy_slots(
      np.where(self.mask_BT, x_BT, 0),
      batch,
      task_BT,
      num_policy_slots=2,
      tasks=TASKS,
    )
    numbers = {}
    for name, moments in measured.items():
      numbers |= policy_slot_numbers(
        name, moments + moments
      )  # of two such batches
    return numbers

  def test_by_policy_slot_and_task(self):
    numbers = self._numbers(self.task_BT)
    for place, mask_BT in (
      ("", self.mask_BT),
      ("/a", self.mask_BT & (self.task_BT == 0)),
      ("/b", self.mask_BT & (self.task_BT == 1)),
    ):
      for policy_slot in range(2):
        x_T = self.x_BT[mask_BT & (self.policy_slot_BT == policy_slot)].astype(
          float
        )
        ratio_T = np.exp(x_T)
        for what, expected in (
          ("share_of_tokens", len(x_T) / mask_BT.sum()),
          ("kl_to_behavior", np.mean(ratio_T - 1 - x_T)),
          ("abs_log_ratio", np.mean(np.abs(x_T))),
          (
            "truncated_sample_size",
            _sample_size(np.minimum(ratio_T, 2)),
          ),
          ("effective_sample_size", _sample_size(ratio_T)),
        ):
          name = f"policy/{what}/policy_slot{policy_slot}{place}"
          with self.subTest(name):
            np.testing.assert_allclose(numbers.pop(name), expected, rtol=1e-5)
    self.assertEmpty(numbers)

  def test_one_token_of_an_old_policy_slot_rules_no_headline(self):
    """A ratio of 400 among the tokens that an old version sampled."""
    calm = self._numbers(None)
    b, t = np.argwhere(self.mask_BT & (self.policy_slot_BT == 1))[0]
    x_BT = self.x_BT.copy()
    x_BT[b, t] = np.log(400)
    found = self._numbers(None, x_BT)
    for name, value in found.items():
      if name.endswith("policy_slot0"):
        self.assertEqual(value, calm[name])  # nobody else's figures move
    self.assertGreater(found["policy/kl_to_behavior/policy_slot1"], 10)
    self.assertLess(found["policy/effective_sample_size/policy_slot1"], 0.2)
    self.assertLess(found["policy/abs_log_ratio/policy_slot1"], 1)
    self.assertGreater(found["policy/truncated_sample_size/policy_slot1"], 0.8)

  def test_tasks_that_are_not_told_apart(self):
    self.assertEqual({name.count("/") for name in self._numbers(None)}, {2})


if __name__ == "__main__":
  absltest.main()
