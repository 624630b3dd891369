"""A store whose heads lie on two devices keeps what one device would."""

import pytest
from absl.testing import absltest

from tests import eight_devices
from tests.rollout import small

HEADS = small.policy().config.num_kv_heads
HOST_BLOCKS = 30


@pytest.mark.full
class ShardedStoreTest(absltest.TestCase):
  @pytest.mark.timeout(300)
  def test_answers_and_reuse_are_those_of_one_device(self):
    one, two = eight_devices.run("tests.rollout.engine.sharded_cache_program")
    for key in ("sampled", "reused", "counts", "moved"):
      self.assertEqual(two[key], one[key], key)
    self.assertEqual(one["shards"], [[HEADS, 1]])
    self.assertEqual(two["shards"], [[HEADS // 2, 2]])
    self.assertEqual(two["failures"], 0)
    moved = two["moved"]
    self.assertGreater(moved["uploads"], 0)
    # More blocks are out than the host has room for: some are gone for good.
    self.assertGreater(moved["spills"] - moved["uploads"], HOST_BLOCKS)


if __name__ == "__main__":
  absltest.main()
