"""Tables of scores tell beside every rate which episodes were lost."""

import io

from absl.testing import absltest
from rich.console import Console

from agentrl_jax.controller.evaluation import TaskScore
from agentrl_jax.data.records import Task
from launch.comparisons.attempts import Attempt, by_environment
from launch.comparisons.score_tables import (
  print_attempts,
  print_scores,
  print_scripted,
)


def shown(show, *arguments):
  text = io.StringIO()
  show(arguments[0], Console(file=text, width=160), *arguments[1:])
  return text.getvalue()


def a_score(*, played, lost):
  return TaskScore(
    num_tasks=played,
    num_lost=lost,
    num_successes=played,
    mean_reward=1.0,
    statuses={"completed": played},
    faults={"GeneratorFault": 2 * lost} if lost else {},
  )


class ScoresTest(absltest.TestCase):
  def test_lost_tasks_are_said_by_name_and_in_total(self):
    scores = {
      "dbbench": a_score(played=1, lost=2),
      "webshop": a_score(played=4, lost=0),
    }
    text = shown(print_scores, scores)
    self.assertIn(
      "dbbench: 2 tasks were lost to faults (GeneratorFault 4", text
    )
    self.assertIn("lost in total: 2 of 7 tasks", text)
    self.assertNotIn("webshop:", text)
    self.assertIn("2 of 7 tasks", shown(print_scripted, scores))
    del scores["dbbench"]
    self.assertNotIn("lost in total", shown(print_scores, scores))


class AttemptsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    numbers = {0: 4, 1: 3, 2: 0, 3: 0}  # attempts that were not lost
    attempts = [
      Attempt("sums", "test", task, n, True, 1.0, "completed", 1, 3)
      for task, number in numbers.items()
      for n in range(number)
    ]
    asked = [Task("sums", "test", task) for task in numbers]
    self.attempts = by_environment(attempts, asked)

  def test_lost_tasks_and_attempts_are_said(self):
    text = shown(print_attempts, self.attempts, 4)
    (row,) = [
      line for line in text.splitlines() if "pass" not in line and "(" in line
    ]
    cells = [cell.strip() for cell in row.split("\u2502")[1:-1]]
    self.assertEqual(cells[:4], ["sums", "2", "2", "9"])
    self.assertTrue(cells[-1].endswith(", 1 tasks)"), cells[-1])
    self.assertFalse(any("tasks" in cell for cell in cells[:-1]))
    self.assertIn("lost in total: 9 of 16 attempts", text)

  def test_an_environment_of_which_all_is_lost_has_a_row(self):
    attempts = by_environment([], [Task("sums", "test", 0)])
    text = shown(print_attempts, attempts, 2)
    self.assertRegex(text, "sums .* 0 .* 1 .* 2 ")
    self.assertIn("lost in total: 2 of 2 attempts", text)
