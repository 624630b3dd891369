"""A page says how its runs were made, and what was overridden."""

import json
import pathlib
import tempfile
import unittest

import pytest

from agentrl_jax.errors import ConfigError
from launch.comparisons.page import compare, render
from launch.comparisons.runs import (
  Arm,
  Override,
  Run,
  Sweep,
  command_of,
  read_arms,
  read_sweeps,
  updates_sentence,
)
from launch.reports.summary import TRAINING
from launch.sweeps.cells import CellState
from launch.sweeps.plan import SweepPlan, write_record
from tests.launch.comparisons.report_test import make_run

ABLATION = "configs/ablations/agentrl.py"


def a_plan(**others):
  return SweepPlan(
    **{
      "ablation": ABLATION,
      "arms": {"full": {}, "again": {}},
      "seeds": [0, 1, 2],
      "overrides": ["--config.train.steps=8"],
    }
    | others
  )


def an_arm(*steps):
  runs = {
    seed: Run(
      name="r",
      seed=seed,
      state=CellState.FINISHED,
      config={} if n is None else {"train.steps": n},
    )
    for seed, n in enumerate(steps)
  }
  return Arm("a", {}, runs)


class SourcesTest(unittest.TestCase):
  def test_a_file_that_a_spreadsheet_saved_is_read(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    path = root / "finals.csv"
    path.write_text(
      "arm,seed,state,stage,mode,task,n,success,low,high,reward\n"
      "a,0,finished,rl,greedy,sums,64,0.5,0.4,0.6,0.5\n",
      encoding="utf-8-sig",  # with a mark of the byte order
    )
    self.assertEqual([arm.name for arm in read_arms([path])], ["a"])

  def test_training_at_the_costs_of_two_files_is_not_compared(self):
    """Each file's budget is that of its own arms."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    paths = []
    for name in ("long", "short"):
      path = root / f"{name}.csv"
      path.write_text(
        "arm,seed,state,stage,mode,task,n,success,low,high,reward\n"
        f'{name},0,finished,rl,"{TRAINING[0]}",sums,64,0.5,0.4,0.6,0.5\n'
        f"{name},0,finished,rl,greedy,sums,64,0.5,0.4,0.6,0.5\n"
      )
      paths.append(path)

    def modes(arms):
      return {e.mode for arm in arms for e in arm.runs[0].evaluations}

    self.assertEqual(modes(read_arms(paths[:1])), {"greedy", TRAINING[0]})
    self.assertEqual(modes(read_arms(paths)), {"greedy"})

  def test_the_command_makes_the_same_cells(self):
    self.assertEqual(
      command_of(a_plan()),
      f"python -m launch.sweep --ablation={ABLATION} --arms=full,again "
      "--seeds=3 --config.train.steps=8",
    )
    text = command_of(a_plan(seeds=[5, 6, 9], overrides=["--config.name=a b"]))
    first, second = text.splitlines()
    self.assertIn("--first_seed=5 --seeds=2 '--config.name=a b'", first)
    self.assertIn("--first_seed=9 --seeds=1 ", second)

  # ml_collections loads files so.
  @pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
  def test_a_page_for_8_updates_says_so(self):
    with tempfile.TemporaryDirectory() as name:
      root = pathlib.Path(name)
      write_record(a_plan(), root, {})
      for seed in range(3):
        make_run(
          root / "cells" / f"full-s{seed}",
          seed=seed,
          success=0.5,
          num_updates=8,
        )
      (sweep,) = read_sweeps([root])
      self.assertEqual(sweep.overrides, [Override("train.steps", "40", "8")])
      page = render(compare("t", read_arms([root]), sweeps=[sweep]))
    self.assertIn(
      "Runs are of 8 updates of RL, where their config has 40.", page
    )
    self.assertIn(f"--ablation={ABLATION}", page)

  def test_a_file_that_is_gone_leaves_its_value_unknown(self):
    with tempfile.TemporaryDirectory() as name:
      write_record(a_plan(ablation="none.py"), pathlib.Path(name), {})
      (sweep,) = read_sweeps([pathlib.Path(name), pathlib.Path("x.csv")])
    self.assertEqual(sweep.overrides, [Override("train.steps", "unknown", "8")])
    self.assertEqual(
      updates_sentence([an_arm(8)], [sweep]), "Runs are of 8 updates of RL."
    )

  # ml_collections loads files so.
  @pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
  def test_a_file_that_fails_now_leaves_its_value_unknown(self):
    with tempfile.TemporaryDirectory() as name:
      root = pathlib.Path(name)
      file = root / "arms.py"
      write_record(a_plan(ablation=str(file)), root, {})
      make_run(root / "cells" / "full-s0", seed=0, success=0.5)
      for text, why in (
        ("import no_such_module", "ModuleNotFoundError: No module named"),
        ("def get_config(arm): return {}[arm]", "KeyError: 'full'"),
        ("def get_config(arm): return 3", "TypeError: "),
        ("raise ValueError('a\\nb')", "ValueError: a b"),
        ("def get_config(arm", "SyntaxError: "),
        ("raise SystemExit('no data')", "SystemExit: no data"),
      ):
        with self.subTest(why):
          file.write_text(f"{text}\n")
          (sweep,) = read_sweeps([root])
          unknown = Override("train.steps", "unknown", "8")
          self.assertEqual(sweep.overrides, [unknown])
          self.assertIn(f"{file} cannot be read: ", sweep.why_unknown)
          self.assertIn(why, sweep.why_unknown)
          page = render(compare("t", read_arms([root]), sweeps=[sweep]))
          self.assertIn(f"nothing is known: {file} cannot be", page)

  def test_updates_of_all_runs(self):
    for steps, expected in (
      ((None,), ""),
      ((1,), "Runs are of 1 update of RL."),
      ((8, 40, 8), "Runs are of 8 to 40 updates of RL."),
      ((40, None), "Runs are of 40 updates of RL."),
    ):
      self.assertEqual(updates_sentence([an_arm(*steps)], []), expected)
    same = Sweep("s", "c", [Override("train.steps", "8", "8")])
    self.assertNotIn("where", updates_sentence([an_arm(8)], [same]))


class ArmsTest(unittest.TestCase):
  """An arm whose seeds are in several folders is one arm."""

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def sweep(self, name, seeds):
    folder = self.root / name
    folder.mkdir()
    for seed in seeds:
      make_run(folder / "cells" / f"a-s{seed}", seed=seed, success=0.5)
    write_record(a_plan(arms={"a": {}}, seeds=seeds), folder, {})
    return folder

  def test_a_sweep_that_has_begun_no_run_has_the_arm_of_the_other(self):
    here, later = self.sweep("here", (0, 1)), self.sweep("later", ())
    write_record(a_plan(arms={"a": {}}, seeds=[1, 2]), later, {})
    for order in ([here, later], [later, here]):
      (arm,) = read_arms(order)
      self.assertEqual(
        {seed: run.state for seed, run in arm.runs.items()},
        {0: CellState.FINISHED, 1: CellState.FINISHED, 2: CellState.WAITING},
      )

  def test_runs_that_keep_other_files_are_an_arm(self):
    """As the cell of a check, which keeps all groups."""
    here, there = self.sweep("here", (0, 1)), self.sweep("there", (2,))
    runs = [here / "cells/a-s0", here / "cells/a-s1", there / "cells/a-s2"]
    path = runs[2] / "config.yaml"
    config = json.loads(path.read_text())
    config["report"] = {"keep_groups": 1_000_000}
    config["checkpoint"] = {"keep": 9, "keep_every": 5}
    path.write_text(json.dumps(config) + "\n")
    for folders in (runs, [here, there]):
      (arm,) = read_arms(folders)
      self.assertEqual(sorted(arm.runs), [0, 1, 2])
    config["checkpoint"] = {"keep_best": "greedy"}  # another version ends it
    path.write_text(json.dumps(config) + "\n")
    for folders in (runs, [here, there]):
      with self.assertRaisesRegex(ConfigError, "differ in checkpoint.keep_be"):
        read_arms(folders)


if __name__ == "__main__":
  unittest.main()
