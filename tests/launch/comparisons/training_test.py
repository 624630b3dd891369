"""Success at equal costs: who spends more per update gains nothing by it."""

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.metrics import Row
from launch.comparisons.page import compare, render
from launch.comparisons.runs import Arm, Run
from launch.comparisons.training import training_evaluation, with_training
from launch.reports.summary import TRAINING
from launch.sweeps.cells import CellState

EPISODES, TOKENS, MINUTES = TRAINING


def a_run(
  success, *, seed=0, tokens=100.0, state=CellState.FINISHED, task="sums"
):
  """Makes a run with an update for each success, of 10 episodes and 30 s."""
  rows = [
    Row(
      "rl",
      step,
      0.0,
      {
        **({} if value is None else {f"success/{task}": value}),
        "batch/trajectories": 10.0,
        "batch/trained_tokens": tokens,
        "seconds/wait": 10.0,
        "seconds/train": 20.0,
      },
    )
    for step, value in enumerate(success, 1)
  ]
  return Run(name=f"s{seed}", seed=seed, state=state, rows=rows)


def an_arm(name, *runs):
  return Arm(name, {}, {run.seed: run for run in runs})


def successes(arms, mode):
  return [
    run.evaluation(mode=mode, stage="rl").tasks["sums"].success
    for arm in with_training(arms)
    for run in arm.runs.values()
  ]


class TrainingTest(parameterized.TestCase):
  @parameterized.parameters(
    (EPISODES, 25.0, (0.1 * 10 + 0.3 * 10 + 0.8 * 5) / 25),
    (TOKENS, 150.0, (0.1 * 100 + 0.3 * 50) / 150),
    (MINUTES, 1.5, (0.1 + 0.3 + 0.8) / 3),
  )
  def test_a_batch_weighs_as_much_as_it_cost(self, mode, budget, expected):
    found = training_evaluation(a_run([0.1, 0.3, 0.8]), mode, budget)
    self.assertAlmostEqual(found.tasks["sums"].success, expected)

  def test_a_batch_without_the_task_counts_for_nothing(self):
    found = training_evaluation(a_run([0.2, None, 0.4]), EPISODES, 30.0)
    self.assertAlmostEqual(found.tasks["sums"].success, 0.3)

  def test_a_rare_task_has_as_many_episodes_as_it_had(self):
    run = a_run([0.5, 0.5])
    run.rows[-1].values.update(
      {"success/rare": 0.5, "rollout/finished/rare": 4.0}
      | {"rollout/finished/sums": 26.0}
    )
    tasks = training_evaluation(run, EPISODES, 20.0).tasks
    self.assertEqual((tasks["rare"].n, tasks["sums"].n), (3, 17))

  def test_a_resumed_run_counts_the_episodes_of_all_its_starts(self):
    run = a_run([0.5] * 4)
    counts = ((26, 4), (52, 8), (26, 0), (52, 0))  # resumed after two updates
    for row, (sums, rare) in zip(run.rows, counts, strict=True):
      row.values.update(
        {"success/rare": 0.5, "rollout/finished/rare": float(rare)}
        | {"rollout/finished/sums": float(sums)}
      )
    tasks = training_evaluation(run, EPISODES, 40.0).tasks
    self.assertEqual((tasks["rare"].n, tasks["sums"].n), (3, 37))

  def test_twice_the_tokens_per_update_are_no_faster_learning(self):
    """An arm that learns by tokens, and spends twice as many an update."""
    learns = np.linspace(0, 0.9, 10)
    arms = [
      an_arm("plain", a_run(learns, tokens=100.0)),
      an_arm("wasteful", a_run(learns[1::2], tokens=200.0)),
    ]
    plain, wasteful = successes(arms, EPISODES)
    self.assertGreater(wasteful - plain, 0.2)
    plain, wasteful = successes(arms, TOKENS)
    self.assertLess(wasteful - plain, 0.051)  # of the curve's steps

  def test_the_budget_is_what_every_finished_run_has_spent(self):
    arms = [
      an_arm("long", a_run([0.0, 0.0, 1.0])),
      an_arm("short", a_run([0.0, 0.0])),
    ]
    self.assertEqual(successes(arms, EPISODES), [0.0, 0.0])

  def test_a_run_that_has_only_begun_cuts_no_budget(self):
    begun = a_run([0.5], seed=1, state=CellState.RUNNING)
    (arm,) = with_training([an_arm("a", a_run([0.0, 1.0]), begun)])
    self.assertEqual(arm.runs[1].evaluations, [])
    score = arm.runs[0].evaluation("rl", EPISODES).tasks["sums"]
    self.assertEqual((score.success, score.n), (0.5, 20))

  def test_runs_of_unknown_costs_are_not_compared(self):
    kept = a_run([])
    arms = [an_arm("a", a_run([0.5])), an_arm("kept", kept)]
    self.assertEqual(with_training(arms), arms)

  def test_the_page_has_a_table_for_each_cost(self):
    arms = [
      an_arm("a", *(a_run([0.1 + 0.01 * s, 0.5], seed=s) for s in range(3))),
      an_arm("b", *(a_run([0.3 + 0.01 * s, 0.5], seed=s) for s in range(3))),
    ]
    found = compare("t", arms)
    self.assertEqual([each.mode for each in found.finals], list(TRAINING))
    self.assertAlmostEqual(found.finals[0].changes[0].tasks["sums"].mean, 0.1)
    page = render(found)
    for mode in TRAINING:
      self.assertIn(f"RL, {mode}", page)


if __name__ == "__main__":
  absltest.main()
