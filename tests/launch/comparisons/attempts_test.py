"""Attempts on disk, none lost and none of another evaluation; pass@k."""

import dataclasses
import json
import math
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from agentrl_jax.controller.evaluation import TaskScore
from agentrl_jax.data.records import Status, Task, Trajectory
from agentrl_jax.errors import ConfigError, NotWritten
from launch.comparisons.attempts import (
  AttemptLog,
  ChatLog,
  Lost,
  by_environment,
  pass_evaluation,
  pass_rates,
  status_shares,
  with_attempts,
)

IDENTITY = {"policy": "rl", "seed": 0}


def played(index=0, attempt=0, reward=1.0, status=Status.COMPLETED):
  return Trajectory(
    task=Task("sums", "test", index),
    group_id="g",
    attempt=attempt,
    seed=0,
    turns=(),
    status=status,
    reward=reward,
  )


class AttemptLogTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "new" / "a.jsonl"

  def test_goes_on_where_it_was_killed(self):
    log = AttemptLog(self.path, IDENTITY)
    log.add(played(0, 0))
    log.add(played(1, 0, reward=0.0))
    with self.path.open("a") as file:
      file.write('{"name": "su')
    again = AttemptLog(self.path, IDENTITY)
    self.assertEqual(again.attempts, log.attempts)
    again.add(played(0, 1))
    self.assertEqual(
      AttemptLog(self.path, IDENTITY).played,
      {
        (Task("sums", "test", 0), 0),
        (Task("sums", "test", 1), 0),
        (Task("sums", "test", 0), 1),
      },
    )

  def test_attempts_of_another_evaluation_are_refused(self):
    AttemptLog(self.path, IDENTITY).add(played())
    with self.assertRaisesRegex(ConfigError, "seed was 0 and is 1"):
      AttemptLog(self.path, IDENTITY | {"seed": 1})

  @parameterized.parameters("", "[]\n", "{\n", '{"policy": "rl"}\n{"a": 1}\n')
  def test_other_files_are_refused(self, text):
    self.path.parent.mkdir()
    self.path.write_text(text)
    with self.assertRaises(ConfigError):
      AttemptLog(self.path, IDENTITY)
    self.assertEqual(self.path.read_text(), text)


class ChatLogTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "new" / "chats.jsonl"

  def rows(self):
    return [json.loads(line) for line in self.path.read_text().splitlines()]

  def test_good_attempts_are_kept_once(self):
    chats = ChatLog(self.path, 0.5)
    for index, reward in enumerate((1.0, 0.5, 0.4, -1.0)):
      chats.add(played(index=index, reward=reward))
    chats.add(played(index=0))
    self.assertEqual([row["reward"] for row in self.rows()], [1.0, 0.5])
    self.assertEqual(chats.num_rows, 2)

  def test_it_goes_on_where_it_was_killed(self):
    chats = ChatLog(self.path, 1.0)
    for index in range(3):
      chats.add(played(index=index))
    whole = self.path.read_text()
    self.path.write_text(whole[:-9])
    chats = ChatLog(self.path, 1.0)
    self.assertEqual(chats.num_rows, 2)
    for index in range(3):
      chats.add(played(index=index))
    self.assertEqual(self.path.read_text(), whole)

  def test_an_attempt_is_logged_after_its_conversation(self):
    log = AttemptLog(None, {}, ChatLog(self.path, 1.0))
    with (
      mock.patch.object(ChatLog, "add", side_effect=NotWritten("full")),
      self.assertRaises(NotWritten),
    ):
      log.add(played())
    self.assertEmpty(log.attempts)  # so it is played again

  def test_a_file_of_another_name_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "must end with .jsonl"):
      ChatLog(self.path.with_suffix(".json"), 1.0)

  def test_a_file_of_other_rows_is_refused(self):
    self.path.parent.mkdir()
    for text in ('{"messages": []}\n', "no JSON\n"):
      self.path.write_text(text)
      with self.assertRaisesRegex(ConfigError, "line 1 is no attempt"):
        ChatLog(self.path, 1.0)
      self.assertEqual(self.path.read_text(), text)


class SharesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "a.jsonl"

  def attempts(self, *successes):
    """One task per argument, whose attempts succeed as it says."""
    log = AttemptLog(None, {})
    for index, each in enumerate(successes):
      for attempt, success in enumerate(each):
        log.add(played(index, attempt, reward=float(success)))
    asked = [Task("sums", "test", index) for index in range(len(successes))]
    return by_environment(log.attempts, asked)["sums"]

  def test_pass_at_k_up_to_what_every_task_has(self):
    rates = pass_rates(self.attempts([1, 0, 0, 0], [0, 0, 0, 0, 0]))
    self.assertEqual(list(rates), [1, 2, 4])
    self.assertEqual([rates[k].mean for k in rates], [0.125, 0.25, 0.5])
    self.assertEqual((rates[4].low, rates[4].high), (0.0, 1.0))

  def test_a_task_that_lost_attempts_shortens_no_table(self):
    tasks = self.attempts([1, 1, 0, 0], [0, 0, 0, 0], [1], [])
    rates = pass_rates(tasks)
    self.assertEqual([(k, rates[k].n) for k in rates], [(1, 3), (2, 2), (4, 2)])
    self.assertAlmostEqual(rates[1].mean, (0.5 + 0 + 1) / 3)
    self.assertEqual(rates[4].mean, 0.5)
    self.assertEqual(pass_rates({}), {})

  def test_lost_tasks_and_attempts_are_counted(self):
    tasks = self.attempts([1, 1, 0, 0], [0, 0, 0, 0], [1], [])
    self.assertEqual(Lost.of(tasks, 4), Lost(num_tasks=1, num_attempts=7))
    self.assertEqual(Lost.of(tasks, 1), Lost(num_tasks=1, num_attempts=1))

  def test_attempts_that_two_processes_played_count_once(self):
    log = AttemptLog(self.path, {})
    for attempt in (0, 1, 0, 1):
      log.add(played(0, attempt))
    self.assertLen(AttemptLog(self.path, {}).attempts, 2)

  def test_pass_at_k_of_a_run_is_of_the_test_alone(self):
    log = AttemptLog(self.path, {})
    log.add(played(0, 0))
    self.assertIsNotNone(pass_evaluation(self.path))
    of_training = played(1, 0)
    log.add(
      dataclasses.replace(
        of_training, task=dataclasses.replace(of_training.task, split="train")
      )
    )
    self.assertIsNone(pass_evaluation(self.path))

  def test_a_file_that_is_being_written_has_what_all_tasks_have(self):
    log = AttemptLog(self.path, {})
    for attempt in range(4):
      log.add(played(0, attempt))
    for attempt in range(3):
      log.add(played(1, attempt))
    found = pass_evaluation(self.path)
    self.assertEqual(list(found.tasks), ["pass@1", "pass@2"])

  def test_tasks_that_all_agree_are_not_certain(self):
    rates = pass_rates(self.attempts([1, 1], [1, 1], [1, 1]))
    self.assertEqual(rates[2].mean, 1.0)
    self.assertLess(rates[2].low, 0.5)
    (half,) = (pass_rates(self.attempts([1, 0]))[1],)
    self.assertLess(half.low, half.high)

  def test_a_score_of_one_attempt_counts_no_further_ones(self):
    """A file of many samples must not make the interval of one narrower."""
    score = TaskScore(
      num_tasks=0,
      num_lost=1,
      num_successes=0,
      mean_reward=math.nan,
      statuses={},
      faults={"crash": 3},
    )
    found = with_attempts(score, self.attempts([1, 0, 0, 0], [0, 1, 1, 1]))
    self.assertEqual((found.num_tasks, found.num_successes), (2, 1))
    self.assertEqual(found.mean_reward, 0.5)
    self.assertEqual(found.statuses, {"completed": 2})
    self.assertEqual((found.num_lost, found.faults), (1, {"crash": 3}))

  def test_statuses_are_shares_of_all_attempts(self):
    log = AttemptLog(None, {})
    log.add(played(0, 0))
    log.add(played(0, 1, status=Status.TASK_LIMIT_REACHED))
    log.add(played(1, 0))
    shares = status_shares(by_environment(log.attempts)["sums"])
    self.assertAlmostEqual(shares["completed"], 2 / 3)
    self.assertAlmostEqual(sum(shares.values()), 1.0)

  def test_an_attempt_is_what_a_trajectory_was(self):
    log = AttemptLog(None, {})
    log.add(played(3, 2, reward=0.25))
    (only,) = log.attempts
    self.assertEqual(
      dataclasses.astuple(only),
      ("sums", "test", 3, 2, False, 0.25, "completed", 0, 0),
    )
