"""Requests that may enter the engine, wait, or are refused."""

import unittest

from agentrl_jax.errors import ConfigError, GeneratorFault, ServerFull
from agentrl_jax.rollout.api import Request, SamplingParams
from agentrl_jax.rollout.drivers.driver import RequestLimiter
from tests.rollout import small


def request(serial: int, policy_slot: int = 0) -> Request:
  return Request(
    small.prompt_of(0, 2), SamplingParams(policy_slot=policy_slot), serial
  )


class RequestLimiterTest(unittest.TestCase):
  def setUp(self):
    self.limiter = RequestLimiter((2, 1), max_waiting=2)
    self.first = [request(i) for i in range(4)]
    self.entered = [self.limiter.enter(r) for r in self.first]

  def test_requests_beyond_the_capacity_are_queued(self):
    self.assertEqual(self.entered, [True, True, False, False])
    self.assertEqual(self.limiter.num_inside, (2, 0))
    self.assertEqual(self.limiter.num_waiting, (2, 0))

  def test_a_full_queue_refuses_with_a_reason(self):
    with self.assertRaisesRegex(ServerFull, "2 requests wait.*policy slot 0"):
      self.limiter.enter(request(9))
    self.assertTrue(self.limiter.enter(request(9, policy_slot=1)))

  def test_leaving_lets_the_oldest_request_enter(self):
    self.assertEqual(self.limiter.leave(self.first[1]), (True, self.first[2]))
    self.assertEqual(self.limiter.leave(self.first[0]), (True, self.first[3]))
    self.assertEqual(self.limiter.leave(self.first[2]), (True, None))
    self.assertEqual(self.limiter.num_inside, (1, 0))

  def test_leaving_twice_counts_once(self):
    self.limiter.leave(self.first[0])
    self.assertEqual(self.limiter.leave(self.first[0]), (False, None))
    self.assertEqual(self.limiter.num_waiting, (1, 0))

  def test_only_waiting_requests_can_be_withdrawn(self):
    self.assertTrue(self.limiter.withdraw(self.first[2]))
    self.assertFalse(self.limiter.withdraw(self.first[2]))
    self.assertFalse(self.limiter.withdraw(self.first[0]))
    self.assertEqual(self.limiter.leave(self.first[0]), (True, self.first[3]))

  def test_closing_returns_all_requests_and_keeps_the_first_reason(self):
    self.assertCountEqual(self.limiter.close(ValueError("bad")), self.first)
    self.assertEqual(self.limiter.close(ValueError("later")), [])
    with self.assertRaisesRegex(GeneratorFault, "bad"):
      self.limiter.enter(request(9))
    self.assertEqual(self.limiter.leave(self.first[0]), (False, None))

  def test_a_negative_queue_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "max_waiting=-1"):
      RequestLimiter((1,), max_waiting=-1)
