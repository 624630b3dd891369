"""A sweep that can show nothing is called that before it runs."""

import math

from absl.testing import absltest, parameterized

from agentrl_jax.data.records import Status, Task, Trajectory
from agentrl_jax.metrics import Row
from launch.comparisons.attempts import AttemptLog, by_environment
from launch.experiments.check import (
  detectable_lines,
  equal_arms,
  sweep_hours,
  update_seconds,
)
from launch.experiments.start import hopeless_tasks, starts_of
from launch.sweeps.plan import Cell
from tests.launch import tiny


def an_attempt(index, attempt, reward, status=Status.COMPLETED):
  return Trajectory(
    task=Task("sums", "train", index),
    group_id="g",
    attempt=attempt,
    seed=0,
    turns=(),
    status=status,
    reward=float(reward),
  )


def starts(successes, group_size=4):
  """Starts of one environment, from each task's attempts."""
  log = AttemptLog(None, {})
  for index, each in enumerate(successes):
    for attempt, success in enumerate(each):
      log.add(an_attempt(index, attempt, success))
  return starts_of(
    by_environment(log.attempts), group_size, incomplete_reward=-0.2
  )


class CheckTest(parameterized.TestCase):
  def test_a_rare_task_is_named_with_its_remedy(self):
    (rare,) = found = starts([[0, 0, 0, 0]] * 31 + [[1, 0, 0, 0]])
    self.assertAlmostEqual(rare.differ, 1 / 32)
    self.assertEqual(rare.signal, rare.differ)
    (sentence,) = hopeless_tasks(found)
    self.assertIn(
      "sums is solved almost never at the start (0.8\N{NO-BREAK SPACE}%)",
      sentence,
    )
    self.assertIn("more demonstrations", sentence)

  def test_a_solved_task_is_named_too(self):
    (sentence,) = hopeless_tasks(starts([[1, 1, 1, 1]] * 8))
    self.assertIn("almost always", sentence)
    self.assertIn("harder tasks", sentence)

  def test_tasks_of_extreme_kinds_have_no_signal_at_a_mean_of_a_half(self):
    found = starts([[1, 1, 1, 1], [0, 0, 0, 0]] * 4)
    self.assertEqual((found[0].success, found[0].differ), (0.5, 0.0))
    self.assertIn("always or never, by task", hopeless_tasks(found)[0])

  def test_attempts_that_do_not_complete_are_a_signal_as_in_training(self):
    """Groups without a success can teach to complete, and to no more."""
    ended = {True: Status.AGENT_CONTEXT_LIMIT, False: Status.COMPLETED}
    log = AttemptLog(None, {})
    for attempt in range(4):
      log.add(an_attempt(0, attempt, 0.0, ended[attempt == 0]))
    (found,) = starts_of(
      by_environment(log.attempts), 4, incomplete_reward=-0.2
    )
    self.assertEqual((found.success, found.signal, found.differ), (0, 1, 0))
    self.assertIn("almost never", hopeless_tasks([found])[0])
    (same,) = starts_of(by_environment(log.attempts), 4, incomplete_reward=0.0)
    self.assertEqual(same.signal, 0.0)

  def test_a_task_with_a_signal_is_not_named(self):
    self.assertEqual(hopeless_tasks(starts([[1, 0, 0, 1]] * 4)), [])

  def test_arms_that_differ_in_nothing_are_named(self):
    def config(**changes):
      made = tiny.get_config()
      made.update_from_flattened_dict(changes)
      return made

    arms = {
      Cell("a", 0): config(name="a"),
      Cell("b", 0): config(name="b"),
      Cell("c", 0): config(name="c", **{"loss.clip_high": 0.5}),
      Cell("a", 1): config(name="a", seed=1),
    }
    (sentence,) = equal_arms(arms)
    self.assertIn("b has the same config as a", sentence)

  def test_few_tasks_and_seeds_find_nothing(self):
    for line in detectable_lines(2, 3):
      self.assertIn("find no difference at all", line)
    self.assertIn("find no difference", detectable_lines(512, 1)[0])
    # sqrt(2 * 0.25 / 512) = 0.03125, times 1.682 for five seeds.
    self.assertIn("difference of 5.3 points", detectable_lines(512, 5)[0])

  def test_the_first_update_compiles_and_does_not_count(self):
    rows = [
      Row("rl", n, 0.0, {"seconds/wait": w, "seconds/train": 1.0})
      for n, w in enumerate((90.0, 2.0, 4.0, 3.0), 1)
    ]
    self.assertEqual(update_seconds(rows), 4.0)
    self.assertTrue(math.isnan(update_seconds(rows[:1])))

  def test_hours(self):
    hours = sweep_hours(
      before_rl_s=600,
      evaluation_s=60,
      update_s=6,
      steps=40,
      num_arms=4,
      num_seeds=5,
      at_once=2,
    )
    self.assertAlmostEqual(hours, 5 * (600 + 4 * 300) / 2 / 3600)


if __name__ == "__main__":
  absltest.main()
