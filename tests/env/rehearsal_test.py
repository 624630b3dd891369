"""Tests of the expert's rehearsal."""

import contextlib
import io
import unittest

from agentrl_jax.env import rehearsal
from agentrl_jax.env.rehearsal import Rehearsal, rehearse
from environments.arithmetic.environment import Arithmetic
from environments.dbbench import DBBench
from environments.knowledgegraph import KnowledgeGraph


class RehearseTest(unittest.IsolatedAsyncioTestCase):
  async def test_counts_by_kind(self):
    done = await rehearse(
      DBBench(kinds=("sum", "lookup")),
      num_tasks=40,
      mistakes={"count_for_sum": 1.0},
    )
    self.assertEqual(done.num_sessions, 40)
    self.assertEqual(set(done.rewards), {"sum", "lookup"})
    self.assertEqual(sum(done.rewards["sum"]), 0.0)
    self.assertEqual(
      done.success, len(done.rewards["lookup"]) / done.num_sessions
    )

  async def test_counts_attempts_and_steps(self):
    done = await rehearse(
      KnowledgeGraph(kinds=("hop",)), num_tasks=5, num_attempts=2, mistakes={}
    )
    self.assertEqual((done.num_sessions, done.success), (10, 1.0))
    self.assertGreater(done.num_steps, 20)

  async def test_environment_without_kinds_has_the_total_alone(self):
    done = await rehearse(Arithmetic(), num_tasks=3, mistakes={})
    self.assertRegex(done.report(), r"\Aall +100.0% of 3\n")

  async def test_attempts_at_one_task_draw_their_own_mistakes(self):
    done = await rehearse(
      DBBench(kinds=("sum",)),
      num_tasks=1,
      num_attempts=40,
      mistakes={"count_for_sum": 0.5},
    )
    self.assertEqual(set(done.rewards["sum"]), {0.0, 1.0})

  def test_report(self):
    done = Rehearsal(
      {"sum": [1.0, 0.0], "avg": [1.0]}, num_steps=9, seconds=1.5
    )
    self.assertEqual(
      done.report(),
      "avg             100.0% of 1\n"
      "sum              50.0% of 2\n"
      "all              66.7% of 3\n"
      "2 sessions and 6 steps per second of processor time",
    )


class CommandTest(unittest.TestCase):
  def run_command(self, *arguments):
    output = io.StringIO()
    with (
      contextlib.redirect_stdout(output),
      contextlib.redirect_stderr(output),
      contextlib.suppress(SystemExit),
    ):
      rehearsal.main(arguments)
    return output.getvalue()

  def test_plays_any_environment_with_options_and_mistakes(self):
    printed = self.run_command(
      *("--environment", "environments.dbbench:DBBench"),
      *("--num_tasks", "5", "--split", "test"),
      *("--option", "kinds=('insert',)"),
      *("--mistake", "drop_last_value=1"),
    )
    self.assertIn("INSERT            0.0% of 5", printed)

  def test_errors_name_the_option(self):
    for arguments, message in (
      (("--option", "num_sums=3"), "num_sums"),
      (("--mistake", "off_by_two=1"), "off_by_two"),
      (("--split", "dev"), "no split 'dev'"),
    ):
      with self.subTest(message):
        printed = self.run_command(
          *("--environment", "environments.arithmetic.environment:Arithmetic"),
          *arguments,
        )
        self.assertIn(message, printed)
