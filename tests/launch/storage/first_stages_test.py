"""A run begins with the stages before RL of another run, or with its own."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.storage.first_stages import stage_keys, take_first_stages
from launch.storage.run_directory import RunDirectory
from tests.launch import tiny

MADE = (
  "tokenizer.json",
  "warm_start/750/state",
  "evaluations/warm_start_greedy.json",
  "done/warm_start.json",
)
LATER = (
  "evaluations/rl_greedy.json",
  "trajectories/validation_000004_greedy.jsonl.gz",
  "done/evaluate_rl_greedy.json",
  "done/rl.json",
)
STAGES = ("warm_start", "evaluation_expert_greedy", "rl", "validation_greedy")


class FirstStagesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.config = tiny.get_config()
    self.source = self.root / "first"
    RunDirectory(self.source).keep_config(self.config)
    self.write(self.source, "made", *MADE, *LATER, "trained_groups.jsonl")
    rows = [json.dumps({"stage": each, "step": 1}) + "\n" for each in STAGES]
    (self.source / "metrics.jsonl").write_text("".join(rows))

  def write(self, run, text, *names):
    for name in names:
      (run / name).parent.mkdir(parents=True, exist_ok=True)
      (run / name).write_text(text)

  def take(self, **changes):
    self.config.update_from_flattened_dict(
      {"warm_start.from_run": str(self.source), **changes}
    )
    run = RunDirectory(self.root / "second")
    take_first_stages(self.config, run)
    return run.root

  def test_stages_before_rl_are_copied_and_nothing_of_rl(self):
    run = self.take(**{"loss.clip_high": 0.9})
    found = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    self.assertEqual(found, {*MADE, "metrics.jsonl"})
    rows = (run / "metrics.jsonl").read_text().splitlines()
    self.assertEqual([json.loads(row)["stage"] for row in rows], [*STAGES[:2]])

  def test_half_a_copy_is_made_again(self):
    self.write(self.root / "second", "half", *MADE[:2])
    run = self.take()
    self.assertEqual((run / "warm_start/750/state").read_text(), "made")

  @parameterized.parameters("done/warm_start.json", "trained_groups.jsonl")
  def test_a_run_with_stages_of_its_own_keeps_them(self, mark):
    self.write(self.root / "second", "own", "tokenizer.json", mark)
    self.assertEqual((self.take() / "tokenizer.json").read_text(), "own")

  def test_stages_made_with_other_settings_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "model.width was 16 and is 32"):
      self.take(**{"model.width": 32})

  def test_a_run_before_its_rl_is_refused(self):
    (self.source / "trained_groups.jsonl").unlink()
    with self.assertRaisesRegex(ConfigError, "no run whose warm start is over"):
      self.take()

  @parameterized.parameters(
    ({"name": "x", "warm_start.from_run": "z"}, True),
    ({"loss.clip_high": 0.3, "advantage.task_center": False}, True),
    ({"train.steps": 99, "optimizer.learning_rate": 1.0}, True),
    ({"environments.arithmetic.place.containers": 3}, True),
    ({"seed": 1}, False),
    ({"warm_start.num_demonstrations": 33}, False),
    ({"environments.arithmetic.mistakes.wrong_sum": 0.1}, False),
    ({"train.row_length": 640}, False),
    ({"evaluation.num_tasks": 3}, False),
    ({"subagent.tool": "delegate"}, False),
    ({"tasks.held_out": ("arithmetic",)}, False),
  )
  def test_arms_that_differ_in_rl_alone_can_share(self, changes, is_shared):
    before = stage_keys(self.config)
    self.config.update_from_flattened_dict(changes)
    self.assertEqual(before == stage_keys(self.config), is_shared)
