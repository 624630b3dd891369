"""Plans of sweeps: what is run, and what is refused before anything is."""

import pathlib
import subprocess
import sys
import tempfile

import pytest
import yaml
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from configs import arms
from launch.reports import summary as summaries
from launch.storage.lock import held
from launch.storage.run_directory import RunDirectory
from launch.sweeps import jobs
from launch.sweeps.cells import CellState, require_same_configs, state_of
from launch.sweeps.plan import (
  Cell,
  SweepPlan,
  make_plan,
  read_record,
  write_record,
)
from tests.launch import command_lines, tiny
from tests.launch.reports import synthetic_run

ARMS = "tests/launch/sweeps/tiny_arms.py"
ROOT = pathlib.Path(__file__).parents[3]


def plan(**changes) -> SweepPlan:
  return SweepPlan(
    **{
      "ablation": ARMS,
      "arms": {"full": {}, "other": {"loss.clip_high": 0.3}},
      "seeds": [0, 1],
      "overrides": ["--config.train.steps=3"],
      **changes,
    }
  )


class PlanTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def test_seeds_are_counted_from_the_first_one(self):
    wanted = make_plan(ARMS, arms=[], num_seeds=2, first_seed=5, overrides=[])
    self.assertEqual(list(wanted.seeds), [5, 6])

  def test_every_arm_gets_a_seed_before_any_gets_two(self):
    self.assertEqual(
      [cell.name for cell in plan().cells],
      ["full-s0", "other-s0", "full-s1", "other-s1"],
    )

  def test_arms_seeds_and_updates_are_added_to_a_record(self):
    write_record(plan(), self.folder)
    more = plan(
      arms={"new": {"seed": 9}}, seeds=[2], overrides=["--config.a=1"]
    )
    write_record(more, self.folder)
    found = read_record(self.folder)
    self.assertEqual(list(found.arms), ["full", "other", "new"])
    self.assertEqual(list(found.seeds), [0, 1, 2])
    self.assertEqual(found.overrides, ["--config.a=1"])

  @parameterized.parameters("{", "[]", '{"format": 1}', "[" * 100_000)
  def test_a_damaged_record_is_refused(self, text):
    (self.folder / "sweep.json").write_text(text)
    with self.assertRaisesRegex(ConfigError, "cannot be read"):
      read_record(self.folder)

  @parameterized.parameters(
    ({"arms": ["ful"]}, "did you mean full"),
    ({"ablation": "nowhere.py"}, "is no file"),
    ({"ablation": "configs/quickstart.py"}, "defines no ARMS"),
    ({"overrides": ["--config.seed=3"]}, "seed=3: a sweep sets seed, name"),
  )
  def test_a_plan_that_cannot_run_is_refused(self, changes, sentence):
    wanted = {
      "ablation": ARMS,
      "arms": [],
      "num_seeds": 1,
      "first_seed": 0,
      "overrides": [],
      **changes,
    }
    with self.assertRaisesRegex(ConfigError, sentence):
      make_plan(wanted.pop("ablation"), **wanted)

  @parameterized.parameters(
    ("{'a/b': {}}", "must be a name of letters"),
    ("{'..': {}}", "must be a name of letters"),
    ("{3: {}}", "must be a name of letters"),
    ("{'a': 3}", "must be a dict of keys"),
    ("{'a': {'seed': 3}}", "sets seed, which a sweep sets"),
    ("['a']", "defines no ARMS"),
    ("{}", "defines no ARMS"),
  )
  def test_arms_that_cannot_be_run_are_refused(self, arms, sentence):
    path = self.folder / "arms.py"
    path.write_text(f"ARMS = {arms}\n")
    with self.assertRaisesRegex(ConfigError, sentence):
      make_plan(str(path), arms=[], num_seeds=1, first_seed=0, overrides=[])


class SameConfigsTest(absltest.TestCase):
  """An arm is its whole config, beyond the keys that its file names."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    begun = self.config("a", 0)
    RunDirectory(self.folder / "cells" / "a-s0").keep_config(begun)

  def config(self, arm, seed, **changes):
    made = tiny.get_config()
    made.update_from_flattened_dict(changes)
    made.update(seed=seed, name=f"{arm}-s{seed}")
    return made

  def require(self, arm="a", **changes):
    config = self.config(arm, 1, **changes)
    require_same_configs({Cell(arm, 1): config}, self.folder)

  def test_another_seed_of_the_same_config_may_be_added(self):
    self.require()
    self.require(**{"train.steps": 99})

  def test_updates_may_not_be_taken_away(self):
    with self.assertRaisesRegex(ConfigError, "train.steps was [0-9]+ and is 1"):
      self.require(**{"train.steps": 1})

  def test_another_config_is_refused_with_both_values(self):
    with self.assertRaisesRegex(
      ConfigError,
      r"a-s0 is a run of the arm a with other settings: loss.clip_high was "
      r"[0-9.]+ and is 0.31. Set them back, give the changed arm",
    ):
      self.require(**{"loss.clip_high": 0.31})

  def test_a_run_of_as_many_updates_is_finished(self):
    run = self.folder / "cells" / "a-s0"
    summaries.write_summary(synthetic_run.summary_of(), run / "summary.json")
    steps = tiny.get_config().train.steps
    self.assertIs(state_of(run, steps), CellState.FINISHED)
    self.assertIs(state_of(run, steps + 1), CellState.STOPPED)

  def test_a_changed_config_of_another_arm_is_accepted(self):
    self.require(arm="b", **{"loss.clip_high": 0.31})


class ArmTest(absltest.TestCase):
  """An arm that cannot be is refused in a sentence, by its name."""

  def apply(self, keys):
    return arms.apply_arm(tiny.get_config(), {"x": keys}, "x")

  def test_a_misspelt_key_is_named_with_those_near_it(self):
    with self.assertRaisesRegex(
      ConfigError, r"the arm x: loss.clip_hihg is no key .*mean loss.clip_high"
    ):
      self.apply({"loss.clip_hihg": 0.3})

  def test_a_value_of_another_type_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "the arm x: .*str"):
      self.apply({"loss.clip_high": "wide"})


class JobSetTest(absltest.TestCase):
  def test_manifests_of_several_cells_are_one_stream(self):
    plan = make_plan(ARMS, arms=[], num_seeds=2, first_seed=0, overrides=[])
    options = ["--image=i", "--learner=v5p-8", "--workdir=gs://bucket/runs"]
    options.append("--environments=1xn2-standard-8:arithmetic")
    stream = "\n---\n".join(jobs.render(plan, "mine", "jobset", options))
    documents = list(yaml.safe_load_all(stream))
    names = {
      (document["kind"], document["metadata"]["name"]) for document in documents
    }
    self.assertLen(names, len(documents))  # nothing is applied over another
    runs = {jobs.job_name("mine", cell) for cell in plan.cells}
    self.assertLen(runs, 4)
    self.assertEqual({name for kind, name in names if kind == "JobSet"}, runs)
    for document in documents:
      self.assertIn(document["metadata"]["labels"]["agentrl-run"], runs)


class JobNamesTest(parameterized.TestCase):
  @parameterized.parameters(
    (("a_b", "a-b"), "a_b-s0 and a-b-s0 would both be called 'mine-a-b-s0'"),
    (("low", "LOW"), "low-s0 and LOW-s0 would both be called"),
    (("clip.high",), "'mine-clip.high-s0': names of jobs have at most 40"),
    (("x" * 40,), "names of jobs have at most 40"),
  )
  def test_each_job_has_a_name_of_its_own(self, arms, message):
    plan = SweepPlan(
      ablation=ARMS, arms=dict.fromkeys(arms, {}), seeds=(0,), overrides=()
    )
    for kind in jobs.RENDERERS:
      with self.assertRaisesRegex(ConfigError, message):
        jobs.render(plan, "mine", kind, ["--learner=v5p-8"])


class FolderTest(absltest.TestCase):
  def test_a_sweep_that_is_refused_changes_nothing_of_the_one_at_work(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_record(plan(arms={"full": {}}, overrides=[]), folder)
    line = ["launch.sweep", f"--ablation={ARMS}", f"--folder={folder}"]
    with held(folder / "lock", "in use"):
      before = {path.name: path.read_text() for path in folder.iterdir()}
      ((status, said),) = command_lines.outcomes([[*line, "--seeds=12"]])
    self.assertEqual(status, 1)
    self.assertIn("RunInUse: another sweep is at work in", said)
    self.assertNotIn("Traceback", said)
    after = {path.name: path.read_text() for path in folder.iterdir()}
    self.assertEqual(after, before)


@pytest.mark.slow
class CommandTest(parameterized.TestCase):
  def test_cells_are_rendered_as_jobs(self):
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        "launch.sweep",
        f"--ablation={ARMS}",
        "--seeds=2",
        "--render=queued",
        "--",
        "--learner=v5p-8",
        "--zone=z",
      ],
      capture_output=True,
      text=True,
      cwd=ROOT,
      timeout=120,
      check=True,
    )
    commands = done.stdout.split("\n---\n")
    self.assertLen(commands, 4)
    self.assertIn("launch/tpu_run.sh --name=tiny-arms-no-norm-s1", commands[3])
    self.assertIn("--learner=v5p-8 --zone=z -- --config=", commands[3])
    self.assertIn("tiny_arms.py:no_norm --config.seed=1", commands[3])
