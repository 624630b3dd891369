"""Tests of `controller.evaluation` and of the players that it is given."""

import asyncio
import contextlib
import dataclasses
import math
import statistics
import unittest

from agentrl_jax.controller import evaluation
from agentrl_jax.controller.evaluation import (
  evaluate,
  first_tasks,
  wilson_interval,
)
from agentrl_jax.controller.player import ExpertPlayer, ExpertTextPlayer
from agentrl_jax.data.records import Status, Task
from agentrl_jax.errors import ConfigError, DeadlineExceeded, EnvironmentFault
from tests.clocks import Clock, until
from tests.controller.stage import (
  LIMITS,
  RETRIES,
  Brittle,
  ScriptedEngine,
  a_player,
  a_trajectory,
  an_episode,
  codec,
)
from tests.settings import WAITS


def tasks(n, environments=None):
  return evaluation.draw_tasks(
    environments or {"arithmetic": Brittle()}, split="test", num_tasks=n, seed=1
  )


async def score(player, num_tasks=20, concurrency=4, timeout_s=60.0, **more):
  scores = await evaluate(
    player,
    tasks(num_tasks),
    concurrency=concurrency,
    seed=2,
    retries=RETRIES,
    timeout_s=timeout_s,
    **more,
  )
  return scores["arithmetic"]


class WilsonTest(unittest.TestCase):
  def test_ends_solve_the_score_equation(self):
    """An end p of the interval is (share - p)^2 = z^2 p (1 - p) / n."""
    for successes, n in ((0, 10), (3, 10), (10, 10), (81, 263), (1, 1)):
      for end in wilson_interval(successes, n):
        with self.subTest(successes=successes, n=n, end=end):
          variance = 1.959963984540054**2 * end * (1 - end) / n
          self.assertAlmostEqual(
            (successes / n - end) ** 2, variance, places=12
          )

  def test_known_value(self):
    """Newcombe, Statistics in Medicine 17 (1998), table I, 81 of 263."""
    low, high = wilson_interval(81, 263)
    self.assertEqual((round(low, 4), round(high, 4)), (0.2553, 0.3662))

  def test_no_episodes_give_the_whole_interval(self):
    self.assertEqual(wilson_interval(0, 0), (0.0, 1.0))


class DrawTest(unittest.TestCase):
  def test_same_seed_same_tasks_without_repeats(self):
    self.assertEqual(tasks(50), tasks(50))
    self.assertEqual(len(set(tasks(50))), 50)
    self.assertEqual({t.split for t in tasks(50)}, {"test"})

  def test_an_environment_of_few_tasks_is_played_whole(self):
    class Few(Brittle):
      def indices(self, split):
        return [4, 2, 9]

    drawn = tasks(50, {"arithmetic": Few()})
    self.assertCountEqual([t.index for t in drawn], [4, 2, 9])

  def test_the_first_of_a_draw_are_a_sample_of_all(self):
    class Sorted(Brittle):
      def indices(self, split):
        return list(range(1000))

    drawn = tasks(256, {"arithmetic": Sorted()})
    first = [task.index for task in first_tasks(drawn, 64)]
    error = 1000 / 12**0.5 / 64**0.5
    self.assertLess(abs(statistics.fmean(first) - 500), 4 * error)

  def test_environments_take_turns(self):
    drawn = tasks(3, {"a": Brittle(), "b": Brittle()})
    self.assertEqual([t.name for t in drawn], ["a", "b"] * 3)


class EvaluateTest(unittest.IsolatedAsyncioTestCase):
  async def test_perfect_and_hopeless(self):
    best = await score(a_player(engine=ScriptedEngine(skill=1.0)))
    self.assertEqual((best.num_tasks, best.num_successes), (20, 20))
    self.assertEqual((best.success_rate, best.mean_reward), (1.0, 1.0))
    self.assertEqual(best.statuses, {"completed": 20})
    worst = await score(a_player(engine=ScriptedEngine(skill=0.0)))
    self.assertEqual((worst.num_tasks, worst.num_successes), (20, 0))
    self.assertEqual(worst.statuses, {"task_limit_reached": 20})

  async def test_result_does_not_depend_on_concurrency(self):
    alone, together = [
      await score(a_player(engine=ScriptedEngine(skill=0.5)), 40, n)
      for n in (1, 16)
    ]
    self.assertEqual(alone, together)
    self.assertLess(0, alone.num_successes)
    self.assertLess(alone.num_successes, 40)

  async def test_concurrency_is_bounded(self):
    environment = Brittle()
    await score(a_player(environment), concurrency=3)
    self.assertEqual(environment.most_open, 3)

  async def test_faults_are_retried_counted_and_never_scored(self):
    class Cursed(Brittle):
      def open(self, task, *, seed):
        if task.index in cursed:
          raise EnvironmentFault("this one never works")
        return super().open(task, seed=seed)

    cursed = {task.index for task in tasks(20)[:5]}
    scored = await score(a_player(Cursed()))
    self.assertEqual((scored.num_tasks, scored.num_lost), (15, 5))
    self.assertEqual(scored.success_rate, 1.0)
    self.assertEqual(scored.faults, {"EnvironmentFault": 15})

  async def test_the_rate_is_nan_if_every_task_is_lost(self):
    scored = await score(a_player(Brittle(fault_rate=1.0)), 3)
    self.assertTrue(math.isnan(scored.success_rate))
    self.assertEqual(scored.interval, (0.0, 1.0))

  async def test_progress_is_reported_task_by_task(self):
    calls = []
    await score(a_player(), 3, progress=lambda *call: calls.append(call[:2]))
    self.assertEqual(calls, [(1, 3), (2, 3), (3, 3)])

  async def test_time_starts_again_with_every_episode_that_ends(self):
    clock = Clock()

    class Slow:
      async def play(self, attempt):
        await clock.forward(900.0)  # the machine's own time counts, too
        return await a_player().play(attempt)

    done = await score(Slow(), 5, concurrency=1, timeout_s=1000.0)
    self.assertEqual(done.num_tasks, 5)

  async def test_a_hang_is_an_error_that_tells_how_far_it_came(self):
    clock = Clock()

    class Hangs:
      num_played = 0

      async def play(self, attempt):
        self.num_played += 1
        if self.num_played > 3:
          await clock.forward(11.0)
          await asyncio.Event().wait()
        return await a_player().play(attempt)

    with self.assertRaisesRegex(
      DeadlineExceeded, "waited 10 s for any of .* 3 of 20 .*evaluation.timeout"
    ):
      await score(Hangs(), timeout_s=10.0)

  async def test_success_is_the_environments_word_if_it_has_one(self):
    class Graded:
      async def play(self, attempt):
        return a_trajectory(status=Status.COMPLETED, reward=0.9)

    scored = await score(Graded(), 4)
    self.assertEqual(scored.num_successes, 0)
    self.assertAlmostEqual(scored.mean_reward, 0.9)

  async def test_bug_is_raised_and_cancelling_leaves_nothing(self):
    class Buggy:
      async def play(self, attempt):
        raise ZeroDivisionError

    with self.assertRaises(ExceptionGroup):
      await score(Buggy())
    environment = Brittle()
    engine = ScriptedEngine(gate=asyncio.Event().wait)
    running = asyncio.create_task(score(a_player(environment, engine)))
    await until(lambda: environment.num_open == 4)
    running.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await running
    self.assertEqual(environment.num_open, 0)

  async def test_metrics(self):
    scores = {"arithmetic": await score(a_player(), 4)}
    wanted = {
      "eval/success/arithmetic": 1.0,
      "eval/success": 1.0,
      "eval/status/completed/arithmetic": 4.0,
      "eval/lost/arithmetic": 0.0,
    }
    found = evaluation.metrics_of(scores)
    self.assertLessEqual(wanted.items(), found.items())


def a_script(environment=None, *, max_turns=8, mistakes=()):
  return ExpertTextPlayer(
    environments={"arithmetic": environment or Brittle()},
    max_turns=max_turns,
    mistakes=dict(mistakes),
    waits=WAITS,
  )


class PlayersTest(unittest.IsolatedAsyncioTestCase):
  async def test_expert_with_and_without_tokens_score_alike(self):
    mistakes = {"arithmetic": {"wrong_sum": 0.5}}
    script = a_script(mistakes=mistakes)
    tokens = ExpertPlayer(
      environments={"arithmetic": Brittle()},
      codec=codec(),
      limits=LIMITS,
      mistakes=mistakes,
      waits=WAITS,
    )
    without, within = await score(script, 30), await score(tokens, 30)
    self.assertEqual(without, within)
    self.assertTrue(0 < without.num_successes < 30)

  async def test_script_has_transcript_pay_and_no_tokens(self):
    trajectory = await a_script().play(an_episode())
    self.assertEqual(trajectory.num_tokens, 0)
    self.assertEqual([t.reward for t in trajectory.turns], [0.0, 1.0])
    self.assertEqual(trajectory.transcript[0]["role"], "user")

  async def test_script_is_paid_what_each_turn_added(self):
    class Instalments(Brittle):
      """Its verdict grows with the turns."""

      @contextlib.asynccontextmanager
      async def open(self, task, *, seed):
        async with super().open(task, seed=seed) as session:
          inner, self.num_steps = session.step, 0

          async def step(answer):
            self.num_steps += 1
            return dataclasses.replace(
              await inner(answer), reward=self.num_steps / 4
            )

          session.step = step
          yield session

    trajectory = await a_script(Instalments()).play(an_episode())
    self.assertEqual([t.reward for t in trajectory.turns], [0.25, 0.25])
    self.assertEqual(trajectory.reward, 0.5)

  async def test_script_is_stopped_by_the_turn_limit(self):
    trajectory = await a_script(max_turns=1).play(an_episode())
    self.assertIs(trajectory.status, Status.TASK_LIMIT_REACHED)

  async def test_unknown_task_is_named(self):
    unknown = [Task("chess", "test", 0)]
    with self.assertRaises(ExceptionGroup) as caught:
      await evaluate(
        a_player(),
        unknown,
        concurrency=1,
        seed=0,
        retries=RETRIES,
        timeout_s=60.0,
      )
    (error,) = caught.exception.exceptions
    self.assertIsInstance(error, ConfigError)
    self.assertIn("'chess'; there are arithmetic", str(error))
