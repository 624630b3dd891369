"""Tests of `controller.recorder`: what is trained on is what was sampled."""

import dataclasses
import unittest

from agentrl_jax.controller.recorder import Recorder, TokenIdentityError
from agentrl_jax.data.messages import Message
from agentrl_jax.data.trajectory import Status, Turn
from agentrl_jax.env.interface import Step
from tests.controller.stage import an_attempt, answer_of, codec


class RecorderTest(unittest.TestCase):
  def _begun(self):
    record = Recorder(an_attempt(), codec(), ())
    record.add_observation(Step((Message("user", "hello"),)))
    return record

  def test_a_prompt_that_forgot_is_a_bug(self):
    record = self._begun()
    record.add_action(record.prompt, answer_of([5, codec().stop_tokens[0]]))
    record.add_observation(Step((Message("user", "and?"),)))
    with self.assertRaises(TokenIdentityError):
      record.add_action(record.prompt[1:], answer_of([5]))

  def test_tokens_changed_after_the_fact_are_a_bug(self):
    record = self._begun()
    record.add_action(record.prompt, answer_of([5, 6]))
    turn = record._turns[0]
    record._turns[0] = dataclasses.replace(turn, sampled=turn.sampled[::-1])
    with self.assertRaises(TokenIdentityError):
      record.trajectory(Status.COMPLETED)

  def test_prompt_is_the_whole_stream_at_any_time(self):
    record = self._begun()
    before = record.prompt
    record.add_action(before, answer_of([5, 6]))
    self.assertEqual(record.prompt.tolist(), [*before.tolist(), 5, 6])

  def test_pay_of_a_turn_is_what_it_added_to_the_verdict(self):
    record = self._begun()
    for verdict in (0.25, 0.25, 1.0):
      record.add_action(record.prompt, answer_of([5]))
      record.add_observation(Step((Message("user", "so far"),), reward=verdict))
    trajectory = record.trajectory(Status.COMPLETED)
    self.assertEqual([t.reward for t in trajectory.turns], [0.25, 0.0, 0.75])
    self.assertEqual(trajectory.reward, 1.0)

  def test_the_engine_may_reuse_its_arrays(self):
    record = self._begun()
    answer = answer_of([5, 6])
    record.add_action(record.prompt, answer)
    answer.sampled[:] = 0
    trajectory = record.trajectory(Status.COMPLETED)
    self.assertEqual(trajectory.turns[0].sampled.tolist(), [5, 6])
    self.assertIsInstance(trajectory.turns[0], Turn)


if __name__ == "__main__":
  unittest.main()
