"""Environments of verifiers play as agents, by the package itself."""

import itertools
import os
import pathlib
import subprocess
import tempfile
import types
import unittest

import pytest

from agentrl_jax.data.records import Status
from configs import finetune
from launch.reports.metrics_file import read_metrics
from launch.verifiers_agents import split_tasks, verdict_of
from tests import programs
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL

ROOT = pathlib.Path(__file__).parents[2]
VERIFIERS = pathlib.Path(
  os.environ.get("AGENTRL_VERIFIERS", ROOT / ".venv-verifiers")
)
LIMIT_S = 900.0
PACKAGE = """
import verifiers.v1 as vf


class Data(vf.TaskData):
  answer: str


class Say(vf.Task[Data]):
  @vf.reward(weight=1.0)
  async def right(self, trace: vf.Trace) -> float:
    return float(trace.last_reply.strip() == self.data.answer)

  @vf.metric
  async def length(self, trace: vf.Trace) -> float:
    return float(len(trace.last_reply))


class SayTaskset(vf.Taskset[Say, vf.TasksetConfig]):
  def load(self):
    return [
      Say(Data(prompt=f"Say {n}.", answer=str(n)), self.config.task)
      for n in range(40)
    ]


__all__ = ["SayTaskset"]
"""


def a_trace(reward=0.5, *, errors=(), metrics=None):
  return types.SimpleNamespace(
    agent=types.SimpleNamespace(name="agent"),
    reward=reward,
    rewards={"right": types.SimpleNamespace(score=reward), "unscored": None},
    metrics=metrics or {},
    errors=[types.SimpleNamespace(message=text) for text in errors],
  )


def some_tasks(number):
  return (types.SimpleNamespace(key=f"task {n}") for n in range(number))


class VerdictTest(unittest.TestCase):
  def test_results_are_reported(self):
    trace = a_trace(metrics={"length": 3, "none": None, "nan": float("nan")})
    self.assertEqual(
      verdict_of([trace], is_ok=True),
      {"reward": 0.5, "metrics": {"right": 0.5, "length": 3.0}},
    )

  def test_what_is_no_result_is_offered_again(self):
    for traces, is_ok in (
      ([a_trace(errors=["upstream 500: oops"])], False),
      ([a_trace(reward=float("nan"))], True),
      ([], False),
    ):
      self.assertEqual(verdict_of(traces, is_ok=is_ok)["status"], "cancelled")

  def test_limits_of_the_run_are_the_policys_doing(self):
    for code, status in (
      ("context_length_exceeded", Status.AGENT_CONTEXT_LIMIT),
      ("episode_turn_limit", Status.TASK_LIMIT_REACHED),
    ):
      trace = a_trace(0.9, errors=[f'upstream 400: {{"code": "{code}"}}'])
      verdict = verdict_of([trace], is_ok=False)
      self.assertEqual(
        (verdict["reward"], verdict["status"]), (0.0, status.value)
      )

  def test_several_agents_are_refused(self):
    with self.assertRaisesRegex(SystemExit, "has 2 agents"):
      verdict_of([a_trace(), a_trace()], is_ok=True)


class SplitTest(unittest.TestCase):
  def test_no_task_is_in_both_splits_and_indices_begin_again(self):
    splits = split_tasks(some_tasks(200))
    keys = {
      name: [split[n].key for n in range(200)] for name, split in splits.items()
    }
    train, test = set(keys["train"]), set(keys["test"])
    self.assertFalse(train & test)
    self.assertEqual(len(train | test), 200)
    self.assertGreater(len(test), 5)
    self.assertEqual(keys["test"][0], keys["test"][len(test)])

  def test_an_endless_task_set_is_read_as_far_as_asked_for(self):
    read = []

    def endless():
      for number in itertools.count():
        read.append(number)
        yield types.SimpleNamespace(key=f"task {number}")

    splits = split_tasks(endless())
    num_read = len(read)
    self.assertLess(num_read, 200)
    self.assertIsNotNone(splits["train"][300])
    self.assertLess(len(read), 400)

  def test_a_task_set_without_a_split_is_refused(self):
    with self.assertRaisesRegex(SystemExit, "no task for .*: give --test"):
      split_tasks(some_tasks(1))


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 60)
class RunTest(unittest.TestCase):
  def setUp(self):
    self.python = VERIFIERS / "bin" / "python"
    if not self.python.exists():
      self.skipTest("needs verifiers: make verifiers, or AGENTRL_VERIFIERS")
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "say_numbers.py").write_text(PACKAGE)
    write_model(folder / "model")
    self.run_folder = folder / "runs" / "model"
    self.environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    self.config = [
      f"--config={finetune.__file__}:{folder / 'model'}",
      *(f"--config.{key}={value}" for key, value in SMALL.items()),
      "--config.tasks.names=('agents',)",
      f"--config.workdir={folder / 'runs'}",
      "--config.agents.port=0",
    ]

  def play(self, command, *flags, taskset):
    program = f"{self.python} -m launch.verifiers_agents {{url}} {{model}}"
    return programs.run(
      command,
      *self.config,
      *flags,
      f"--config.agents.program={program} {taskset}",
      deadline_s=LIMIT_S,
      env=self.environment,
    )

  def test_an_environment_is_trained_on_and_evaluated(self):
    taskset = "say-numbers --env.agent.harness.id=null --max-concurrent=4"
    flags = ("--config.train.steps=2", "--config.evaluation.every=2")
    done = self.play("launch.train", *flags, taskset=taskset)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    rows = read_metrics(self.run_folder / "metrics.jsonl")
    updates = [row.values for row in rows if row.stage == "rl"]
    self.assertEqual(len(updates), 2)
    for values in updates:
      self.assertEqual(values["rollout/token_identity/agents"], 1.0)
      self.assertLess(values["policy/engine_drift"], 1e-4)
      self.assertGreater(values["episode/length/agents"], 0.0)
      self.assertIn("episode/right/agents", values)
    played = [r for r in rows if r.stage == "validation_greedy"]
    self.assertEqual([r.step for r in played], [0, 2])
    self.assertEqual({r.values["eval/lost/agents"] for r in played}, {0})
    done = self.play(
      "launch.evaluate",
      "--policy=agents",
      f"--run={self.run_folder}",
      "--samples=2",
      "--nogreedy",
      taskset=taskset,
    )
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])

  def test_what_cannot_be_is_a_sentence(self):
    for flags, sentence in (
      ([], "name a task set"),
      (["no-such-env"], "taskset 'no-such-env' not found"),
      (["say-numbers", "--resume"], "resume of vf-eval would have no effect"),
      (["say-numbers", "--env.taskset.size=3"], "--env.taskset.size"),
      (["say-numbers", "-n", "1"], "leaves no task for"),
    ):
      command = (self.python, "-m", "launch.verifiers_agents", "http://x", "m")
      done = subprocess.run(
        [*command, *flags],
        cwd=ROOT,
        env=self.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
      )
      self.assertEqual(done.returncode, 1, done.stderr[-3000:])
      self.assertIn(sentence, done.stderr + done.stdout)
      self.assertNotIn("Traceback", done.stderr)
