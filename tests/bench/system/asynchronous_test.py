"""Tests of `bench.system.asynchronous`: which runs are made, and what is read.

The runs themselves take minutes, and are not made here.
"""

import argparse
import contextlib
import json
import math
import pathlib
import tempfile
import unittest
from unittest import mock

from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import FILE, MetricsWriter
from bench.system import asynchronous
from bench.system.asynchronous import Cell
from launch.config.settings import read_settings
from studies.configs.asynchronous import ARMS, get_config
from tests.launch.export_test import write_model

CELL = Cell(arm="synchronous", cores="apart", answers=16, repeat=2)


def run_of(arm, cores, repeat, speed, answers=0):
  return {
    "arm": arm,
    "cores": cores,
    "answers": answers,
    "repeat": repeat,
    "updates_per_minute": speed,
  }


class CellsTest(unittest.TestCase):
  def test_every_repeat_has_every_run_and_begins_with_another(self):
    found = list(asynchronous.cells([16, 64], 3))
    self.assertEqual(len(found), 3 * 2 * len(ARMS) * len(asynchronous.LAYOUTS))
    self.assertEqual(len({cell.name for cell in found}), len(found))
    size = len(found) // 3
    firsts = [found[n * size] for n in range(3)]
    self.assertEqual([cell.repeat for cell in firsts], [0, 1, 2])
    self.assertEqual(len({(c.arm, c.cores) for c in firsts}), 3)
    for n in range(3):
      repeats = {cell.repeat for cell in found[n * size : (n + 1) * size]}
      self.assertEqual(repeats, {n})

  def test_some_layouts_are_run_and_unknown_ones_refused(self):
    found = asynchronous.cells([0], 2, ["synchronous"], ["colocated"])
    self.assertEqual(
      [c.name for c in found],
      ["synchronous-colocated-s0", "synchronous-colocated-s1"],
    )
    read = asynchronous.some_of(asynchronous.LAYOUTS)
    self.assertEqual(read("apart,together"), ["apart", "together"])
    with self.assertRaisesRegex(
      argparse.ArgumentTypeError, "no beside; there are tog"
    ):
      read("apart,beside")

  def test_the_command_makes_the_runs_that_it_names(self):
    made = []

    def measure(cell, options, product):
      made.append(cell.name)
      raise ConfigError("no run here")

    with (
      mock.patch.object(asynchronous, "measure", measure),
      self.assertRaises(SystemExit),
    ):
      asynchronous.main(["--arms=asynchronous_4", "--layouts=apart"])
    self.assertEqual(made, ["asynchronous_4-apart-s0"])

  def test_flags_say_arm_model_seed_and_limit(self):
    flags = asynchronous.flags(CELL, "models/S", 20, "runs/a")
    self.assertIn(
      "--config=studies/configs/asynchronous.py:synchronous,models/S", flags
    )
    for flag in (
      "--config.seed=2",
      "--config.name=synchronous-apart-t16-s2",
      "--config.episode.max_answer_tokens=16",
    ):
      self.assertIn(flag, flags)
    of_quickstart = asynchronous.flags(
      Cell(arm="asynchronous", cores="apart", answers=0, repeat=0),
      "quickstart",
      20,
      "runs/a",
    )
    self.assertIn(
      "--config=studies/configs/asynchronous.py:asynchronous", of_quickstart
    )
    self.assertNotIn("max_answer_tokens", " ".join(of_quickstart))

  def test_arms_are_configs_and_differ_in_what_waits(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    model = pathlib.Path(folder) / "tiny-qwen"
    write_model(model)
    for arm in ARMS:
      for text, groups in ((arm, 24), (f"{arm},{model}", 8)):
        settings = read_settings(get_config(text))
        self.assertEqual(settings.engine.num_policy_slots, 1)
        self.assertEqual(settings.admission.max_concurrent_groups, groups)
    lag = get_config("synchronous").rollouts.max_lag
    self.assertEqual(lag, 0)  # else servers could answer with older weights
    self.assertEqual(get_config("synchronous").admission.max_staleness, 0)
    self.assertEqual(get_config("asynchronous_4").admission.max_staleness, 4)
    with self.assertRaisesRegex(ConfigError, "is not one of synchronous"):
      get_config("synchron")


class ReadingTest(unittest.TestCase):
  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def write(self, num_updates):
    """The first update takes 100 s, each other one 10 s."""
    times = iter([100.0 + 10.0 * n for n in range(num_updates)])
    with MetricsWriter(self.folder, clock=lambda: next(times)) as writer:
      for n in range(num_updates):
        values = {
          "seconds/wait": 100.0 if n == 0 else 6.0,
          "seconds/train": 4.0,
          "staleness/mean": 0.5,
          "staleness/max": 2,
          "success/a": n / 10,
          "success/b": 0.0,
          "rollout/group_s/a": 9.0,
          "rollout/episode_s/a": 3.0,
        }
        writer.write(n + 1, values, stage="rl")

  def test_the_first_update_does_not_count(self):
    self.write(9)
    found = asynchronous.read_run(self.folder)
    self.assertAlmostEqual(found["updates_per_minute"], 6.0)
    self.assertEqual((found["wait_s"], found["train_s"]), (6.0, 4.0))
    self.assertEqual(found["updates"], 9)
    self.assertAlmostEqual(found["success"], (0.7 + 0.8) / 2 / 2)
    self.assertEqual(found["unevenness"], 3.0)

  def test_one_update_has_no_speed(self):
    self.write(1)
    with self.assertRaisesRegex(ConfigError, "2 or more"):
      asynchronous.read_run(self.folder)

  def test_a_run_that_has_ended_is_not_made_again(self):
    options = argparse.Namespace(
      workdir=str(self.folder), model="models/S", updates=20
    )
    (self.folder / "S").mkdir()
    line = self.folder / "S" / f"{CELL.name}.json"
    line.write_text(json.dumps({"updates": 20, "arm": "as kept"}))

    class NoProduct:
      def gflops(self):
        raise AssertionError("a run was made")

    found = asynchronous.measure(CELL, options, NoProduct())
    self.assertEqual(found["arm"], "as kept")
    options.updates = 30
    with self.assertRaisesRegex(ConfigError, "a run of 20 updates"):
      asynchronous.measure(CELL, options, NoProduct())

  def test_a_process_that_fails_shows_its_log(self):
    options = asynchronous._parse(
      [
        f"--workdir={self.folder}",
        "--learner_cores=0",
        "--rollout_cores=0",
        "--",
        "--config.no_such_key=1",
      ]
    )

    class Rate:
      def gflops(self):
        return 1.0

    cell = Cell(arm="synchronous", cores="together", answers=0, repeat=0)
    with self.assertRaisesRegex(ConfigError, "(?s)ended with .*no_such_key"):
      asynchronous.measure(cell, options, Rate())
    self.assertFalse(
      (self.folder / "quickstart" / f"{cell.name}.json").exists()
    )
    self.assertFalse((self.folder / FILE).exists())

  def test_a_layout_says_who_has_which_cores(self):
    found = {}

    @contextlib.contextmanager
    def server(cores, common, folder, number):
      found[layout].append(cores)
      yield f"host:{number}"

    def run(cores, module, given, folder):
      servers = [flag for flag in given if "rollouts.servers" in flag]
      found[layout] += [cores, *servers]
      raise ConfigError("enough")

    options = asynchronous._parse([f"--workdir={self.folder}"])
    with (
      mock.patch.object(asynchronous, "_server", server),
      mock.patch.object(asynchronous, "_run", run),
    ):
      for layout in asynchronous.LAYOUTS:
        found[layout] = []
        cell = Cell(arm="synchronous", cores=layout, answers=0, repeat=0)
        with self.assertRaisesRegex(ConfigError, "enough"):
          asynchronous.measure(cell, options, mock.Mock())
    flag = "--config.rollouts.servers="
    self.assertEqual(
      found,
      {
        "together": ["0,1"],
        "apart": ["1", "0", f"{flag}host:0"],
        "colocated": ["0", "1", "0,1", f"{flag}host:0,host:1"],
      },
    )


class RatiosTest(unittest.TestCase):
  def test_the_best_synchronous_layout_is_one_for_all_repeats(self):
    runs = [
      run_of("synchronous", "together", 0, 10.0),
      run_of("synchronous", "together", 1, 20.0),
      run_of("synchronous", "apart", 0, 12.0),
      run_of("synchronous", "apart", 1, 8.0),
      run_of("asynchronous", "apart", 0, 15.0),
      run_of("asynchronous", "apart", 1, 15.0),
    ]
    ratios = [run["ratio"] for run in asynchronous.with_ratios(runs)]
    self.assertEqual(ratios, [1.0, 1.0, 1.2, 0.4, 1.5, 0.75])

  def test_each_limit_has_its_own(self):
    runs = [
      run_of("synchronous", "together", 0, 10.0, answers=16),
      run_of("synchronous", "together", 0, 2.0, answers=64),
      run_of("asynchronous", "apart", 0, 4.0, answers=64),
    ]
    found = asynchronous.with_ratios(runs)
    self.assertEqual([run["ratio"] for run in found], [1.0, 1.0, 2.0])

  def test_what_was_not_run_has_no_ratio(self):
    runs = [run_of("asynchronous", "apart", 0, 4.0)]
    self.assertTrue(math.isnan(asynchronous.with_ratios(runs)[0]["ratio"]))
    # Not even an asynchronous run that is faster than the synchronous ones.
    both = [*runs, run_of("synchronous", "together", 1, 2.0)]
    found = asynchronous.with_ratios(both)
    self.assertTrue(math.isnan(found[0]["ratio"]))
    self.assertEqual(found[1]["ratio"], 1.0)

  def test_runs_beside_other_work_are_called_so(self):
    runs = [{"product_gflops": rate} for rate in (210.0, 200.0)]
    self.assertEqual(asynchronous.contention(runs), "")
    runs.append({"product_gflops": 90.0})
    self.assertIn("90 to 210 GFLOP/s", asynchronous.contention(runs))


if __name__ == "__main__":
  unittest.main()
