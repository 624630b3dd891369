"""Tests of `controller.chat_record`."""

import unittest

from agentrl_jax.controller.chat_record import ChatRecord
from agentrl_jax.data.records import Message, Status
from agentrl_jax.env.interface import Step
from tests.controller.stage import an_episode, answer_of, codec


class ChatRecordTest(unittest.TestCase):
  def test_reward_of_a_turn_is_the_change_of_the_verdict(self):
    record = ChatRecord(an_episode(), codec())
    line = record.start_line(())
    record.add_step(line, Step((Message("user", "hello"),)))
    for verdict in (0.25, 0.25, 1.0):
      line.add_action(line.prompt, answer_of([5]))
      record.add_step(line, Step((Message("user", "so far"),), reward=verdict))
    trajectory = record.trajectory(Status.COMPLETED)
    self.assertEqual([t.reward for t in trajectory.turns], [0.25, 0.0, 0.75])
    self.assertEqual(trajectory.reward, 1.0)

  def test_a_transcript_names_lines_if_there_are_several(self):
    record = ChatRecord(an_episode(), codec())
    first = record.start_line((), "planner")
    first.add_observation([Message("user", "plan")])
    self.assertNotIn("line", self.transcript(record)[0])
    record.start_line((), "worker").add_observation([Message("user", "work")])
    self.assertEqual([m["line"] for m in self.transcript(record)], [0, 1])

  def transcript(self, record):
    return record.trajectory(Status.CANCELLED).transcript
