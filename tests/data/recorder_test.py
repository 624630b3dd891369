"""The tokens that are trained on are those that were sampled."""

import dataclasses
import types
import unittest

import numpy as np

from agentrl_jax.data.recorder import Recorder, TokenIdentityError
from agentrl_jax.data.records import EpisodeSpec, Status, Task
from agentrl_jax.errors import GeneratorFault


def answer_of(sampled, logprob=-0.5):
  return types.SimpleNamespace(
    sampled=np.asarray(sampled, np.int32),
    behavior_logprob=np.full(len(sampled), logprob, np.float32),
    raw_logprob=np.full(len(sampled), logprob, np.float32),
    experts=None,
    version=np.zeros(len(sampled), np.int32),
    policy_slot=0,
  )


def a_record():
  task = Task("arithmetic", "train", 0)
  record = Recorder(EpisodeSpec(task=task, group_id="g", attempt=0, seed=7))
  line = record.start_line()
  line.add_observation(np.array([1, 2, 3]))
  return record, line


def end(record, reward=0.0):
  return record.trajectory(
    Status.COMPLETED, reward=reward, metrics={}, transcript=()
  )


class RecorderTest(unittest.TestCase):
  def test_a_prompt_that_forgot_is_a_bug(self):
    _, line = a_record()
    line.add_action(line.prompt, answer_of([5, 6]))
    line.add_observation(np.array([4]))
    with self.assertRaises(TokenIdentityError):
      line.add_action(line.prompt[1:], answer_of([5]))

  def test_an_observation_that_was_not_sent_is_a_bug(self):
    record, line = a_record()
    line.add_action(np.array([1, 2, 9]), answer_of([5, 6]))
    with self.assertRaises(TokenIdentityError):
      end(record)

  def test_tokens_changed_after_the_fact_are_a_bug(self):
    record, line = a_record()
    line.add_action(line.prompt, answer_of([5, 6]))
    turn = record._turns[0]
    record._turns[0] = dataclasses.replace(turn, sampled=turn.sampled[::-1])
    with self.assertRaises(TokenIdentityError):
      end(record)

  def test_trajectory_has_all_tokens_in_order(self):
    record, line = a_record()
    line.add_action(line.prompt, answer_of([5, 6]))
    line.add_observation(np.array([4]))
    line.add_action(line.prompt, answer_of([7]))
    record.set_reward(1.0)
    trajectory = end(record, reward=1.0)
    self.assertEqual(trajectory.lines[0].tokens.tolist(), [1, 2, 3, 5, 6, 4, 7])
    self.assertEqual([t.reward for t in trajectory.turns], [0.0, 1.0])
    self.assertEqual(trajectory.attempt, 0)

  def test_prompt_is_the_whole_stream_at_any_time(self):
    _, line = a_record()
    before = line.prompt
    line.add_action(before, answer_of([5, 6]))
    self.assertEqual(line.prompt.tolist(), [*before.tolist(), 5, 6])

  def test_the_engine_may_reuse_its_arrays(self):
    (record, line), answer = a_record(), answer_of([5, 6])
    line.add_action(line.prompt, answer)
    answer.sampled[:] = 0
    self.assertEqual(end(record).turns[0].sampled.tolist(), [5, 6])

  def test_unusable_answers_are_faults_of_the_engine(self):
    for answer in (answer_of([]), answer_of([5], logprob=np.nan)):
      record, line = a_record()
      with self.assertRaises(GeneratorFault):
        line.add_action(line.prompt, answer)


class LinesTest(unittest.TestCase):
  def test_each_has_its_own_tokens_in_the_order_of_its_answers(self):
    record, plan = a_record()
    plan.add_action(plan.prompt, answer_of([5]))
    write = record.start_line("write")
    write.add_observation(np.array([8, 9]))
    write.add_action(write.prompt, answer_of([10]))
    plan.add_observation(np.array([4]))
    plan.add_action(plan.prompt, answer_of([6]))
    write.add_observation(np.array([3]))
    write.add_action(write.prompt, answer_of([11]))
    lines = end(record).lines
    self.assertEqual(
      [line.tokens.tolist() for line in lines],
      [[1, 2, 3, 5, 4, 6], [8, 9, 10, 3, 11]],
    )
    self.assertEqual([line.numbers for line in lines], [(0, 2), (1, 3)])
    self.assertEqual([line.role for line in lines], ["", "write"])

  def test_a_line_without_an_answer_is_none(self):
    record, line = a_record()
    line.add_action(line.prompt, answer_of([5]))
    record.start_line("write").add_observation(np.array([8, 9]))
    self.assertEqual(len(end(record).lines), 1)

  def test_an_answer_on_another_line_is_a_bug(self):
    record, line = a_record()
    line.add_action(line.prompt, answer_of([5]))
    other = record.start_line()
    other.add_observation(np.array([8]))
    other.add_action(other.prompt, answer_of([9]))
    record._turns[1] = dataclasses.replace(record._turns[1], line=0)
    with self.assertRaises(TokenIdentityError):
      end(record)

  def test_an_episode_without_answers_has_no_line(self):
    record, _ = a_record()
    self.assertEqual(end(record).lines, ())

  def test_one_line_without_a_role_has_no_roles(self):
    record, line = a_record()
    line.add_action(line.prompt, answer_of([5]))
    self.assertEqual(end(record).roles, ())
