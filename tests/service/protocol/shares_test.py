"""Keys are shared among servers evenly, and stay where they are."""

import collections

from absl.testing import absltest

from agentrl_jax.service.protocol.shares import Shares

ADDRESSES = ("http://a", "http://b", "http://c")
KEYS = [f"task/train/{n}" for n in range(3000)]


class SharesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 0.0
    self.shares = Shares(ADDRESSES, clock=lambda: self.now)

  def chosen(self, keys=KEYS):
    return [self.shares.choose(key) for key in keys]

  def test_each_has_as_many(self):
    counts = collections.Counter(self.chosen())
    self.assertEqual(set(counts), set(ADDRESSES))
    for count in counts.values():
      self.assertAlmostEqual(count, 1000, delta=100)

  def test_a_lost_server_moves_only_its_own_keys(self):
    before = self.chosen()
    self.shares.lose("http://b")
    during = self.chosen()
    self.assertNotIn("http://b", during)
    for old, new in zip(before, during, strict=True):
      self.assertTrue(old in (new, "http://b"))
    self.now = 1.0
    self.assertEqual(self.chosen(), before)
    self.shares.lose("http://b")  # twice as long
    self.now = 2.9
    self.assertEqual(self.chosen(), during)
    self.shares.find("http://b")
    self.assertEqual(self.chosen(), before)

  def test_a_lost_server_is_asked_after_30_s_at_most(self):
    for _ in range(20):
      self.shares.lose("http://b")
      self.now += 30.0
      self.assertIn("http://b", self.chosen(KEYS[:50]))

  def test_requests_that_lose_it_at_once_count_as_one(self):
    for _ in range(100):
      self.shares.lose("http://b")
    self.now = 1.0
    self.assertIn("http://b", self.chosen())

  def test_of_lost_servers_the_first_to_return_is_asked(self):
    self.shares.lose("http://c")
    self.now = 0.5
    self.shares.lose("http://a")
    self.shares.lose("http://b")
    self.assertEqual(set(self.chosen()), {"http://c"})

  def test_others_are_asked_in_turn(self):
    key = KEYS[0]
    order = [self.shares.choose(key, skipped) for skipped in range(4)]
    self.assertEqual(set(order), set(ADDRESSES))
    self.assertEqual(order[3], order[0])
