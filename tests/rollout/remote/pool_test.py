"""Choice of a server: by load, by conversation, never an unavailable one."""

from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote import pool as server_pool
from agentrl_jax.rollout.remote.wire import ServedPolicySlot, ServerStatus


def status(*publications, **changes) -> ServerStatus:
  fields = dict(
    policy_slots=tuple(
      e and ServedPolicySlot(version=e, publication=e) for e in publications
    ),
    num_inside=0,
    num_waiting=0,
  )
  return ServerStatus(**(fields | changes))


class ServerPoolTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 0.0
    self.pool = server_pool.ServerPool(
      ["a:1", "b:1"], num_policy_slots=1, clock=lambda: self.now
    )
    self.a, self.b = self.pool.servers

  def hear_both(self, publication=1):
    for server in self.pool.servers:
      self.pool.update(server, status(publication))

  def choose(self, conversation=0):
    chosen = self.pool.choose(SamplingParams(conversation=conversation))
    if chosen is not None:
      chosen.num_requests += 1
    return chosen

  def test_no_server_is_chosen_before_its_first_status(self):
    self.assertIsNone(self.choose())
    self.assertIn("not been reached", str(self.a))

  def test_spreads_over_all(self):
    self.hear_both()
    self.assertEqual({self.choose(), self.choose()}, {self.a, self.b})

  def test_load_has_requests_of_other_clients_and_own_ones_once(self):
    self.a.num_requests = 3
    self.pool.update(self.a, status(1, num_inside=3))
    self.pool.update(self.b, status(1, num_inside=2, num_waiting=2))
    self.assertEqual((self.a.load, self.b.load), (3, 4))
    self.assertIs(self.choose(), self.a)

  def test_a_conversation_stays_and_a_new_one_goes_where_there_is_room(self):
    self.hear_both()
    home = self.choose(7)
    other = self.b if home is self.a else self.a
    self.assertIs(self.choose(7), home)
    self.assertIs(self.choose(7), home)
    self.assertIs(self.choose(8), other)
    self.assertIs(self.choose(7), home)

  def test_a_conversation_does_not_return_to_a_lost_server(self):
    self.hear_both()
    home = self.choose(7)
    other = self.b if home is self.a else self.a
    self.pool.mark_lost(home, "was lost")
    self.assertIs(self.choose(7), other)
    self.pool.update(home, status(2))
    self.assertIs(self.choose(7), other)
    self.assertEqual(home.num_lost, 1)

  def test_the_number_of_remembered_conversations_is_bounded(self):
    self.hear_both()
    with_less = server_pool.MAX_CONVERSATIONS
    server_pool.MAX_CONVERSATIONS = 3
    try:
      for conversation in range(1, 9):
        self.choose(conversation)
    finally:
      server_pool.MAX_CONVERSATIONS = with_less
    self.assertEqual(list(self.pool._servers_of), [6, 7, 8])

  def test_a_full_server_is_not_chosen_for_a_while(self):
    self.hear_both()
    self.pool.pause(self.a, 2.0)
    self.assertIs(self.choose(), self.b)
    self.assertIs(self.choose(), self.b)
    self.pool.pause(self.b, 5.0)
    self.assertIsNone(self.choose())
    self.now = 2.5
    self.assertIs(self.choose(), self.a)

  def test_servers_that_drain_or_have_no_weights_are_skipped(self):
    self.pool.update(self.a, status(1, is_draining=True))
    self.pool.update(self.b, status(None))
    self.assertIsNone(self.choose())
    self.assertIn("draining", str(self.a))
    self.assertIn("nothing", str(self.b))

  def test_servers_with_old_weights_are_skipped(self):
    self.hear_both(publication=4)
    self.pool.require({0: 5})
    self.assertIsNone(self.choose())
    self.assertEqual(self.pool.lagging(), [self.a, self.b])
    self.pool.update(self.b, status(5))
    self.assertEqual(self.pool.lagging(), [self.a])
    self.assertIs(self.choose(), self.b)
    self.pool.mark_lost(self.a, "was lost")
    self.assertEmpty(self.pool.lagging())

  def test_a_server_of_another_config_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "a:1 has 2 policy slots"):
      self.pool.update(self.a, status(1, 1))
