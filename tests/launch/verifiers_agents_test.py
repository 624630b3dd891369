"""Environments of verifiers play as agents, by the package itself."""

import asyncio
import os
import pathlib
import tempfile
import types
import unittest

import numpy as np
import pytest

from agentrl_jax.data.records import EpisodeSpec, Status, Task
from launch.verifiers_agents import split_tasks, verdict_of
from tests.rollout import talking

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
    metrics=metrics or {},
    errors=[types.SimpleNamespace(message=text) for text in errors],
  )


class VerdictTest(unittest.TestCase):
  def test_results_are_reported(self):
    trace = a_trace(metrics={"length": 3, "none": None, "nan": float("nan")})
    self.assertEqual(
      verdict_of([trace], is_ok=True),
      {"reward": 0.5, "metrics": {"length": 3.0}},
    )

  def test_what_is_no_result_is_offered_again(self):
    for trace, is_ok in (
      (a_trace(errors=["upstream 500: oops"]), False),
      (a_trace(reward=float("nan")), True),
    ):
      self.assertEqual(verdict_of([trace], is_ok=is_ok)["status"], "cancelled")

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

  def test_no_task_is_in_both_splits(self):
    tasks = [types.SimpleNamespace(key=f"task {n}") for n in range(200)]
    splits = split_tasks(tasks)
    self.assertEqual(len(splits["train"]) + len(splits["test"]), 200)
    self.assertGreater(len(splits["test"]), 5)


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 60)
class EpisodesTest(unittest.IsolatedAsyncioTestCase):
  async def test_episodes_are_recorded_as_sampled(self):
    python = VERIFIERS / "bin" / "python"
    if not python.exists():
      self.skipTest("needs verifiers: make verifiers, or AGENTRL_VERIFIERS")
    folder = self.enterContext(tempfile.TemporaryDirectory())
    (pathlib.Path(folder) / "say_numbers.py").write_text(PACKAGE)
    policy = talking.Scripted()
    policy.says = ["3<|end|>"] * 4
    served = await self.enterAsyncContext(
      talking.Talking(
        generator=policy,
        limits={"context": 4096},
        rules={"max_tokens": 4096, "max_answer_tokens": 100},
      )
    )
    program = await asyncio.create_subprocess_exec(
      python,
      *("-m", "launch.verifiers_agents", f"{served.url}/v1", talking.NAME),
      *("--taskset=say_numbers", "--concurrency=2"),
      cwd=ROOT,
      env=os.environ
      | {
        "PYTHONPATH": folder,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
      },
    )
    try:
      async with asyncio.timeout(LIMIT_S):
        played = await asyncio.gather(
          *(
            served.episodes.play(
              EpisodeSpec(
                task=Task("say", "train", number),
                group_id="g",
                attempt=number,
                seed=number,
              )
            )
            for number in range(4)
          )
        )
    finally:
      if program.returncode is None:
        program.terminate()
      await program.wait()
    sampled = talking.codec().encode("3<|end|>")
    for episode in played:
      self.assertIs(episode.status, Status.COMPLETED)
      self.assertEqual(episode.metrics["length"], 1.0)
      (turn,) = episode.turns
      np.testing.assert_array_equal(turn.sampled, sampled)
    self.assertEqual(sum(episode.reward for episode in played), 1.0)
