"""Rates read from the metrics of a run, made up so that each is known."""

import math
import pathlib
import random
import statistics
import tempfile

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import MetricsWriter
from launch.config.settings import read_settings
from launch.planning.system.measured import (
  read_measured,
  require_same_work,
  slowest_of,
  spread_of,
)
from launch.planning.system.prediction import predict
from tests.launch import tiny

WAIT_S, TRAIN_S, CHECKPOINT_S = 6.0, 3.0, 1.0
STEPS = 10
# In each step of the run: four episodes of two answers of eight tokens.
EPISODES, ANSWERS, TOKENS = 4, 2, 8
ENGINE_STEPS, ENGINE_STEP_S = 50, 0.08


class _Clock:
  def __init__(self):
    self.now_s = 1000.0

  def __call__(self) -> float:
    return self.now_s


def _row(step: int, **changes) -> dict[str, float]:
  values = {
    "seconds/wait": WAIT_S,
    "seconds/train": TRAIN_S,
    "staleness/mean": 1.5,
    "rollout/finished/arithmetic": step * EPISODES,
    "groups/finished/arithmetic": step * EPISODES / 2,
    "rollout/sampled_tokens/arithmetic": step * EPISODES * ANSWERS * TOKENS,
    "rollout/turns/arithmetic": ANSWERS,
    "rollout/tokens/arithmetic": 40.0,
    "rollout/episode_s/arithmetic": 7.0,
    "rollout/group_s/arithmetic": 7.0,
    "engine/steps": 1000 + step * ENGINE_STEPS,
    "engine/prefill_s": 20 + step * ENGINE_STEPS * ENGINE_STEP_S / 4,
    "engine/decode_s": 30 + step * ENGINE_STEPS * ENGINE_STEP_S * 3 / 4,
    # Half of four slots and of two: three busy slots.
    "engine/slot_occupancy/policy_slot0": 0.5,
    "engine/slot_occupancy/policy_slot1": 0.5,
    "engine/wait_s/policy_slot0": 0.25,
    "engine/wait_s/policy_slot1": 0.25,
  }
  return {name: float(v) for name, v in (values | changes).items()}


class MeasuredTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.run_folder = pathlib.Path(folder.name)
    self.settings = read_settings(tiny.get_config())

  def _write(self, steps=STEPS, compile_s=0.0, without=(), **changes):
    clock = _Clock()
    with MetricsWriter(self.run_folder, clock=clock) as writer:
      writer.write(1, {"loss": 1.0}, stage="warm_start")
      for step in range(1, steps + 1):
        clock.now_s += WAIT_S + TRAIN_S + CHECKPOINT_S
        clock.now_s += compile_s * (step == 1)
        row = _row(step, **changes)
        for name in without:
          del row[name]
        writer.write(step, row, stage="rl")

  def test_the_learner_is_busy_but_for_its_waiting(self):
    self._write(compile_s=500.0)  # of the first step, which is left out
    found = read_measured(self.run_folder, self.settings)
    self.assertEqual(found.num_steps, 8)
    self.assertAlmostEqual(found.step_s, 10)
    self.assertAlmostEqual(found.learner.step_s, TRAIN_S + CHECKPOINT_S)
    self.assertAlmostEqual(found.learner_waits, 0.6)
    self.assertAlmostEqual(found.learner.tokens, 2 * 2 * 40)
    self.assertEqual(found.staleness_mean, 1.5)

  def test_an_answer_takes_its_share_of_the_busy_engine(self):
    self._write()
    found = read_measured(self.run_folder, self.settings, num_servers=2)
    # 50 steps of 0.08 s with three busy slots, for eight answers.
    answer_s = 50 * 0.08 * 3 / 8
    self.assertAlmostEqual(found.rollouts.answer_s, answer_s)
    self.assertAlmostEqual(
      found.rollouts.environment_s, 7 / 2 - answer_s - 0.25
    )
    self.assertEqual(found.rollouts.num_servers, 2)
    self.assertEqual(found.workload.num_answers, ANSWERS)
    self.assertAlmostEqual(found.workload.answer_tokens, TOKENS)

  def test_episodes_before_the_measured_steps_do_not_count(self):
    """Two steps of the run are skipped: their episodes took 100 s."""
    clock = _Clock()
    with MetricsWriter(self.run_folder, clock=clock) as writer:
      for step in range(1, STEPS + 1):
        clock.now_s += 10.0
        mean_s = (100.0 * min(step, 2) + 7.0 * max(0, step - 2)) / step
        times = ("rollout/episode_s", "rollout/group_s")
        means = {f"{name}/arithmetic": mean_s for name in times}
        writer.write(step, _row(step, **means), stage="rl")
    found = read_measured(self.run_folder, self.settings)
    answer_s = 50 * 0.08 * 3 / 8
    self.assertAlmostEqual(
      found.rollouts.environment_s, 7 / 2 - answer_s - 0.25
    )

  def test_a_full_window_is_averaged_over_the_steps(self):
    clock = _Clock()
    with MetricsWriter(self.run_folder, clock=clock) as writer:
      for step in range(1, STEPS + 1):
        clock.now_s += 10.0
        changes = {
          "rollout/finished/arithmetic": 1000.0 + step * EPISODES,
          "groups/finished/arithmetic": 1000.0 + step * EPISODES / 2,
          "rollout/episode_s/arithmetic": 6.0 + step % 2,
          "rollout/group_s/arithmetic": 6.0 + step % 2,
        }
        writer.write(step, _row(step, **changes), stage="rl")
    found = read_measured(self.run_folder, self.settings)
    answer_s = 50 * 0.08 * 3 / 8
    self.assertAlmostEqual(
      found.rollouts.environment_s, 6.5 / 2 - answer_s - 0.25
    )

  def test_a_run_that_finished_no_episode_is_refused(self):
    self._write(**{"rollout/finished/arithmetic": 0.0})
    with self.assertRaisesRegex(ConfigError, "finished no group"):
      read_measured(self.run_folder, self.settings)

  @parameterized.parameters(0.0, 0.3, 1.0)
  def test_work_spreads_as_the_slowest_of_a_group_tells(self, spread):
    dice = random.Random(0)
    sigma = math.sqrt(math.log1p(spread**2))
    pairs = [
      [dice.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(2)]
      for _ in range(20_000)
    ]
    slowest = statistics.fmean(map(max, pairs))
    self._write(**{"rollout/group_s/arithmetic": 7.0 * slowest})
    found = read_measured(self.run_folder, self.settings)
    self.assertAlmostEqual(found.workload.spread, spread, delta=0.02)

  def test_one_attempt_has_no_slower_one(self):
    self.assertEqual(spread_of(2.0, 1), 0.0)
    self.assertEqual(slowest_of(0.0, 8), 1.0)

  def test_a_run_without_seconds_of_groups_is_refused(self):
    self._write(without=("rollout/group_s/arithmetic",))
    with self.assertRaisesRegex(ConfigError, "has no rollout/group_s"):
      read_measured(self.run_folder, self.settings)

  def test_what_is_read_can_be_predicted_with(self):
    self._write()
    found = read_measured(self.run_folder, self.settings)
    system = predict(
      self.settings, found.workload, found.learner, found.rollouts
    )
    self.assertAlmostEqual(system.learner_s, 4.0)

  @parameterized.parameters(
    ("group.size", 3),
    ("admission.groups_per_step", 1),
    ("engine.slots", (8, 2)),
    ("episode.max_turns", 1),
    ("model.width", 32),
    ("train.micro_batch", 1),
  )
  def test_rates_are_of_the_runs_own_work(self, key, value):
    config = tiny.get_config()
    config.update_from_flattened_dict({key: value})
    with self.assertRaisesRegex(ConfigError, "of --config differ"):
      require_same_work(read_settings(config), self.settings)

  def test_waiting_may_be_asked_about(self):
    config = tiny.get_config()
    config.admission.update(max_staleness=5, max_concurrent_groups=9)
    config.queue.max_groups = 30
    require_same_work(read_settings(config), self.settings)

  @parameterized.parameters(6, 1)
  def test_too_few_steps_are_refused(self, steps):
    self._write(steps=steps)
    with self.assertRaisesRegex(ConfigError, f"of {steps} steps .* need 7"):
      read_measured(self.run_folder, self.settings)

  def test_a_run_with_engines_elsewhere_is_refused(self):
    self._write(without=("engine/steps",))
    with self.assertRaisesRegex(ConfigError, "no metrics of an engine"):
      read_measured(self.run_folder, self.settings)

  def test_a_folder_of_no_run_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "has no metrics.jsonl"):
      read_measured(self.run_folder / "none", self.settings)
