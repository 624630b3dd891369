"""A whole run, small and real: killed, interrupted, and brought to its end.

One run serves all tests here: it is killed outright once reinforcement learning
is under way, asked to stop a little later, and then left to finish.
"""

import collections
import json
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import weakref

import jax
import pytest
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from agentrl_jax.train.learner import Learner
from configs import environments, finetune
from launch.reports.metrics_file import read_metrics
from launch.run import training
from launch.run.training import train
from tests.clocks import wait_until
from tests.launch import tiny
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL as SMALL_MODEL

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 8
SMALL = {
  "name": "small",
  "tokenizer.vocab_size": 2560,
  "tokenizer.num_texts": 60,
  "model.width": 32,
  "model.num_layers": 1,
  "model.mlp_width": 48,
  "warm_start.num_demonstrations": 96,
  "train.steps": STEPS,
  "train.micro_batch": 2,
  "group.size": 2,
  "admission.groups_per_step": 2,
  "admission.max_concurrent_groups": 2,
  "queue.max_groups": 2,
  "cross_policy.policy_slots": ("fresh", "every 2"),
  "checkpoint.every": 2,
  "evaluation.num_tasks": 3,
  "evaluation.num_untrained": 2,
  "engine.num_slot_sizes": 1,
  "episode.max_turns": 3,
  "episode.max_answer_tokens": 12,
}
DEADLINE_S = 600  # seconds; a busy machine takes its time


class _Run:
  """A run in a process of its own."""

  def __init__(self, workdir: pathlib.Path):
    flags = [f"--config.{key}={value}" for key, value in SMALL.items()]
    self.root = workdir / "small"
    self.command = [
      sys.executable,
      "-m",
      "launch.train",
      "--config=configs/quickstart.py",
      f"--config.workdir={workdir}",
      "--config.engine.slots=(4, 2)",
      *flags,
    ]
    self.process = subprocess.Popen(
      self.command,
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def wait_for_update(self, step: int) -> None:
    """Returns when the RL update was reported."""

    def has_come():
      return self._last_update() >= step or self.process.poll() is not None

    def said():
      self.process.kill()
      return f"update {step}: {self.process.communicate()[0][-3000:]}"

    wait_until(has_come, said, DEADLINE_S)
    if self._last_update() < step:
      raise AssertionError(said())

  def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
    """Sends the signal, if any, and waits: the exit status, what was said."""
    if number is not None:
      self.process.send_signal(number)
    said, _ = self.process.communicate(timeout=DEADLINE_S)
    return self.process.returncode, said

  def _last_update(self) -> int:
    path = self.root / "metrics.jsonl"
    if not path.exists():
      return -1
    return max(
      (r.step for r in read_metrics(path) if r.stage == "rl"), default=-1
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TrainTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    workdir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    first = _Run(workdir)
    cls.root = first.root
    first.wait_for_update(3)
    cls.killed, _ = first.end(signal.SIGKILL)
    second = _Run(workdir)
    second.wait_for_update(5)
    cls.stopped, cls.stopped_said = second.end(signal.SIGTERM)
    cls.steps_when_stopped = sorted(
      int(p.name) for p in (cls.root / "rl").iterdir() if p.name.isdigit()
    )
    if cls.stopped != 128 + signal.SIGTERM:
      raise AssertionError(f"{cls.stopped}: {cls.stopped_said[-3000:]}")
    cls.command = second.command
    summary = cls.root / "summary.json"
    cls.stopped_summary = json.loads(summary.read_text())
    cls.stopped_report = (cls.root / "report.html").read_text()
    cls.finished, cls.finished_said = _Run(workdir).end()
    cls.again, cls.again_said = _Run(workdir).end()

  def _ledger(self):
    text = (self.root / "trained_groups.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]

  def test_ends_as_it_should(self):
    self.assertEqual(self.killed, -signal.SIGKILL)
    self.assertEqual(
      self.stopped, 128 + signal.SIGTERM, self.stopped_said[-3000:]
    )
    self.assertEqual(self.finished, 0, self.finished_said[-3000:])
    self.assertEqual(self.again, 0, self.again_said[-3000:])

  def test_stopping_says_in_a_line_what_is_kept_and_how_to_go_on(self):
    (line,) = [x for x in self.stopped_said.splitlines() if "stopped by" in x]
    step = self.steps_when_stopped[-1]
    self.assertIn(f"SIGTERM; kept in {self.root}: checkpoint of rl step", line)
    self.assertIn(f"step {step}, with", line)
    self.assertIn(f"report: {self.root / 'report.html'}", line)
    command = shlex.split(line.partition("to continue: ")[2])
    self.assertEqual(command, self.command)
    for noise in ("CRITICAL", "Traceback", "CANCELLED"):
      self.assertNotIn(noise, self.stopped_said)

  def test_a_stopped_run_has_a_report(self):
    self.assertFalse(self.stopped_summary["is_finished"])
    stages = {e["stage"] for e in self.stopped_summary["evaluations"]}
    self.assertEqual(stages, {"untrained", "warm_start", "scripted", "expert"})
    self.assertIn("rl", self.stopped_summary["wall_s"])
    self.assertIn("stopped before its end", self.stopped_report)
    summary = json.loads((self.root / "summary.json").read_text())
    self.assertTrue(summary["is_finished"])
    self.assertNotIn(
      "stopped before its end", (self.root / "report.html").read_text()
    )

  def test_a_signal_leaves_a_checkpoint_of_the_latest_update(self):
    updates = [entry["version"] for entry in self._ledger()]
    self.assertEqual(updates, list(range(STEPS)))
    self.assertGreaterEqual(self.steps_when_stopped[-1], 5)

  def test_no_group_is_trained_on_twice_and_none_is_lost(self):
    groups = [g for entry in self._ledger() for g in entry["groups"]]
    counts = collections.Counter(groups)
    self.assertEqual(counts.most_common(1)[0][1], 1)
    self.assertLen(groups, 2 * STEPS)
    # Positions are handed out in order; what is not trained on yet is queued
    # or in flight, never more than the run holds at a time.
    self.assertLess(max(map(int, groups)), 2 * STEPS + 6)

  def test_metrics_name_every_update_once(self):
    rows = read_metrics(self.root / "metrics.jsonl")
    steps = [row.step for row in rows if row.stage == "rl"]
    self.assertEqual(steps, list(range(1, STEPS + 1)))

  def test_files_and_numbers(self):
    for name in ("config.yaml", "curves.png", "summary.json", "report.html"):
      self.assertGreater((self.root / name).stat().st_size, 500, name)
    summary = json.loads((self.root / "summary.json").read_text())
    for evaluation in summary["evaluations"]:
      path = f"{evaluation['stage']}_{evaluation['mode']}.json"
      filed = json.loads((self.root / "evaluations" / path).read_text())
      for task, score in filed["tasks"].items():
        self.assertEqual(score["n"] + score["lost"], _num_tasks(evaluation))
        self.assertEqual(score["success"], evaluation["tasks"][task]["success"])
    stages = {(e["stage"], e["mode"]) for e in summary["evaluations"]}
    self.assertLen(stages, 7)
    self.assertIn("rl", summary["wall_s"])

  def test_a_finished_run_is_shown_again_and_not_played_again(self):
    self.assertNotIn("warm start", self.again_said.split("greedy")[0])
    self.assertIn("report", self.again_said)


def _num_tasks(evaluation) -> int:
  untrained = evaluation["stage"] == "untrained"
  return SMALL[f"evaluation.num_{'untrained' if untrained else 'tasks'}"]


def test_a_warm_start_without_an_expert_is_refused(tmp_path):
  config = tiny.get_config()
  config.environments.arithmetic = environments.entry(
    "tests.controller.player_test:Untaught"
  )
  config.workdir = str(tmp_path / "runs")
  with pytest.raises(ConfigError, match="arithmetic has no expert, and"):
    train(config)
  assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_no_copy_of_the_first_params_stays(tmp_path, monkeypatch):
  first, alive = [], []
  made, update = training.warm_start_params, Learner.update

  def remembered(*of):
    params = made(*of)
    first.extend(map(weakref.ref, jax.tree.leaves(params)))
    return params

  def counted(*of):
    alive.append(sum(each() is not None for each in first))
    return update(*of)

  monkeypatch.setattr(training, "warm_start_params", remembered)
  monkeypatch.setattr(Learner, "update", counted)
  config = tiny.get_config()
  config.workdir, config.compile_cache = str(tmp_path), ""
  config.train.steps = 2
  train(config)
  assert first and alive[-1] == 0, (len(first), alive)


@pytest.mark.parametrize("what", ["port", "program", "template"])
def test_a_refused_start_leaves_nothing(tmp_path, what):
  """So that the advised change is not refused in turn."""
  write_model(tmp_path / "model")
  config = finetune.get_config(str(tmp_path / "model"))
  small = {k: v for k, v in SMALL_MODEL.items() if "options" not in k}
  config.update_from_flattened_dict(small | {"workdir": str(tmp_path / "runs")})
  with socket.create_server(("127.0.0.1", 0)) as taken:
    if what == "port":
      config.agents.port = taken.getsockname()[1]
      why = "choose another --config.agents.port"
    elif what == "program":
      config.agents.update(port=0, program="no-such-program {url}")
      why = "no program 'no-such-program'"
    else:
      path = tmp_path / "model/tokenizer_config.json"
      path.write_text(json.dumps({"chat_template": "{% if %}"}))
      why = "template"
    with pytest.raises(ConfigError, match=why):
      train(config)
  assert [path.name for path in tmp_path.iterdir()] == ["model"]
