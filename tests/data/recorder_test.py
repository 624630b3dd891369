"""The tokens that are trained on are those that were sampled."""

import dataclasses
import types
import unittest

import numpy as np

from agentrl_jax.data.records import (
  EpisodeSpec,
  Recorder,
  Status,
  Task,
  TokenIdentityError,
  tokens_of,
)
from agentrl_jax.errors import GeneratorFault


def answer_of(sampled, logprob=-0.5):
  return types.SimpleNamespace(
    sampled=np.asarray(sampled, np.int32),
    behavior_logprob=np.full(len(sampled), logprob, np.float32),
    raw_logprob=np.full(len(sampled), logprob, np.float32),
    version=np.zeros(len(sampled), np.int32),
    policy_slot=0,
  )


def a_record():
  task = Task("arithmetic", "train", 0)
  record = Recorder(EpisodeSpec(task=task, group_id="g", attempt=0, seed=7))
  record.add_observation(np.array([1, 2, 3]))
  return record


def end(record, reward=0.0):
  return record.trajectory(
    Status.COMPLETED, reward=reward, metrics={}, transcript=()
  )


class RecorderTest(unittest.TestCase):
  def test_a_prompt_that_forgot_is_a_bug(self):
    record = a_record()
    record.add_action(record.prompt, answer_of([5, 6]))
    record.add_observation(np.array([4]))
    with self.assertRaises(TokenIdentityError):
      record.add_action(record.prompt[1:], answer_of([5]))

  def test_an_observation_that_was_not_sent_is_a_bug(self):
    record = a_record()
    record.add_action(np.array([1, 2, 9]), answer_of([5, 6]))
    with self.assertRaises(TokenIdentityError):
      end(record)

  def test_tokens_changed_after_the_fact_are_a_bug(self):
    record = a_record()
    record.add_action(record.prompt, answer_of([5, 6]))
    turn = record._turns[0]
    record._turns[0] = dataclasses.replace(turn, sampled=turn.sampled[::-1])
    with self.assertRaises(TokenIdentityError):
      end(record)

  def test_trajectory_has_all_tokens_in_order(self):
    record = a_record()
    record.add_action(record.prompt, answer_of([5, 6]))
    record.add_observation(np.array([4]))
    record.add_action(record.prompt, answer_of([7]))
    record.set_reward(1.0)
    trajectory = end(record, reward=1.0)
    self.assertEqual(tokens_of(trajectory).tolist(), [1, 2, 3, 5, 6, 4, 7])
    self.assertEqual([t.reward for t in trajectory.turns], [0.0, 1.0])
    self.assertEqual(trajectory.attempt, 0)

  def test_prompt_is_the_whole_stream_at_any_time(self):
    record = a_record()
    before = record.prompt
    record.add_action(before, answer_of([5, 6]))
    self.assertEqual(record.prompt.tolist(), [*before.tolist(), 5, 6])

  def test_the_engine_may_reuse_its_arrays(self):
    record, answer = a_record(), answer_of([5, 6])
    record.add_action(record.prompt, answer)
    answer.sampled[:] = 0
    self.assertEqual(end(record).turns[0].sampled.tolist(), [5, 6])

  def test_unusable_answers_are_faults_of_the_engine(self):
    for answer in (answer_of([]), answer_of([5], logprob=np.nan)):
      record = a_record()
      with self.assertRaises(GeneratorFault):
        record.add_action(record.prompt, answer)
