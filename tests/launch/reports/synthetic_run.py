"""A small run that never happened, for tests of how a run is shown.

Written through the same writers as a real one. Its numbers are drawn from a
seeded generator and mean nothing.
"""

import math
import pathlib

import numpy as np

from agentrl_jax.data.records import Status, Task, Trajectory, Turn
from launch.reports.metrics_file import MetricsWriter
from launch.reports.summary import Evaluation, Score, Summary

TASKS = ("dbbench", "webshop")
RATES = {  # of success, greedy; made up
  "untrained": (0.0, 0.01),
  "warm_start": (0.45, 0.32),
  "rl": (0.75, 0.88),
  "scripted": (0.12, 0.93),
  "expert": (1.0, 0.88),
}
FACTS = {
  "commit": "0" * 40,
  "seed": 0,
  "versions": {"python": "3.11.2", "jax": "0.10.2"},
  "machine": {
    "system": "Linux x86_64",
    "cores": 2,
    "memory_gib": 16.0,
    "devices": ["cpu:0"],
  },
}


def a_score(rate: float, n: int = 256) -> Score:
  """A score with Wilson's 95 % interval."""
  z = 1.959964
  centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
  arm = z * math.sqrt(rate * (1 - rate) / n + (z / n) ** 2 / 4)
  arm /= 1 + z * z / n
  return Score(n, rate, min(centre - arm, rate), max(centre + arm, rate), rate)


def an_evaluation(stage: str, mode: str, tasks=TASKS) -> Evaluation:
  down = 0.0 if mode == "greedy" else 0.1
  scores = {
    task: a_score(max(rate - down, 0.0))
    for task, rate in zip(tasks, RATES[stage], strict=True)
  }
  return Evaluation(stage, mode, scores)


def evaluations() -> list[Evaluation]:
  both = [
    an_evaluation(stage, mode)
    for stage in ("untrained", "warm_start", "rl")
    for mode in ("greedy", "sampled")
  ]
  beside = [an_evaluation(stage, "greedy") for stage in ("scripted", "expert")]
  return [*both, *beside]


def a_summary(name: str = "synthetic") -> Summary:
  return Summary(
    name=name,
    evaluations=evaluations(),
    wall_s={
      "demonstrations": 12.0,
      "warm_start": 171.2,
      "evaluate_warm_start_greedy": 21.8,
      "rl": 140.0,
      "other": 5.0,
    },
    facts=FACTS,
    config_changes={"train.steps": [200, 40], "loss.clip_high": [0.2, 0.28]},
  )


def write_metrics(directory: pathlib.Path, num_steps: int = 40) -> None:
  rng = np.random.default_rng(0)
  with MetricsWriter(directory, clock=lambda: 1.8e9) as writer:
    for step in range(1, 10 * num_steps, 5):
      loss = 3 * math.exp(-step / 80) + 0.3 + rng.normal(scale=0.05)
      writer.write(step, {"loss": loss}, stage="warm_start")
    for step in range(1, num_steps + 1):
      gone = 1 - math.exp(-3 * step / num_steps)
      values = {
        "staleness/mean": 1.2 + rng.normal(scale=0.1),
        "staleness/max": 3.0,
        "queue/fill": float(np.clip(0.6 + rng.normal(scale=0.1), 0, 1)),
        "policy/engine_drift": 1.5e-6 + rng.exponential(2e-7),
        "policy/entropy": 0.5 - 0.2 * gone + rng.normal(scale=0.02),
        "gradient_norm": 0.3 + rng.exponential(0.05),
        "updates/no_signal": float(step == 2),
        "updates/not_finite": 0.0,
      }
      for task, first, last in zip(
        TASKS, RATES["warm_start"], RATES["rl"], strict=True
      ):
        success = first + (last - first) * gone - 0.1
        success += rng.normal(scale=0.05)
        values[f"success/{task}"] = float(np.clip(success, 0, 1))
        values[f"rollout/success/{task}"] = values[f"success/{task}"]
        values[f"rollout/reward/{task}"] = success * 1.1 - 0.1
        values |= _counts(task, 128 * step) | _of_policy_slots(task, success)
      values |= {
        f"policy/{what}/policy_slot{policy_slot}": value
        + rng.normal(scale=0.01)
        for policy_slot in (0, 1)
        for what, value in (
          ("share_of_tokens", 0.75 - 0.5 * policy_slot),
          ("abs_log_ratio", 0.05 + 0.05 * policy_slot),
          ("kl_to_behavior", 0.02 + 0.02 * policy_slot),
          ("truncated_sample_size", 0.99 - 0.02 * policy_slot),
          ("effective_sample_size", 0.98 - 0.1 * policy_slot),
        )
      }
      writer.write(step, values, stage="rl")


def _counts(task: str, attempts: int) -> dict[str, float]:
  """As the controller's monitor names them, all of attempts that never were."""
  return {
    f"rollout/finished/{task}": attempts,
    f"rollout/status/completed/{task}": attempts - 3,
    f"rollout/status/task_limit_reached/{task}": 3,
    f"rollout/sampled_tokens/{task}": 42 * attempts,
    f"rollout/turns/{task}": 3.25,
    f"rollout/tokens/{task}": 210.0,
    f"rollout/episode_s/{task}": 1.5,
    f"rollout/token_identity/{task}": 1.0,
    f"rollout/retried/{task}": 2,
    f"rollout/masked/{task}": 0,
    f"rollout/late/{task}": 0,
    f"groups/finished/{task}": attempts // 8,
    f"groups/dropped/{task}": 0,
  }


def _of_policy_slots(task: str, success: float) -> dict[str, float]:
  """As the chooser of policy slots names them."""
  return {
    f"policy_slots/{what}/policy_slot{policy_slot}/{task}": value
    for policy_slot in (0, 1)
    for what, value in (
      ("weight", 0.75 - 0.5 * policy_slot),
      ("share", 0.75 - 0.5 * policy_slot),
      ("success", success - 0.1 * policy_slot),
      ("contribution", 0.01 - 0.04 * policy_slot),
    )
  }


def _a_turn(rng: np.random.Generator, version: int, **kwargs) -> Turn:
  length = 14
  logprob = -rng.exponential(0.4, size=length).astype(np.float32)
  return Turn(
    observation=np.arange(30, dtype=np.int32),
    sampled=rng.integers(0, 999, size=length, dtype=np.int32),
    behavior_logprob=logprob,
    raw_logprob=logprob,
    version=np.full(length, version, np.int32),
    **kwargs,
  )


def summary_of(*evaluations: Evaluation) -> Summary:
  """A summary of nothing but these evaluations."""
  return Summary(
    name="<one>",
    evaluations=[*evaluations],
    wall_s={},
    facts=FACTS,
    config_changes={},
  )


def a_call(name: str, arguments: str, call_id: str) -> dict:
  return {
    "role": "assistant",
    "content": "",
    "tool_calls": [
      {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
      }
    ],
  }


def a_trajectory(
  *, reward: float = 1.0, status: Status = Status.COMPLETED
) -> Trajectory:
  rng = np.random.default_rng(1)
  query = (
    '{"query": "SELECT `Team`, COUNT(*) FROM `A very long table name that has '
    'to be wrapped somewhere` WHERE `Year` > 1999 GROUP BY `Team`"}'
  )
  return Trajectory(
    task=Task("dbbench", "test", 17),
    group_id="dbbench-test-17",
    attempt=0,
    seed=5,
    turns=(
      _a_turn(rng, 12),
      _a_turn(rng, 13, policy_slot=1),
      _a_turn(rng, 13, reward=reward),
    ),
    status=status,
    reward=reward,
    transcript=(
      {"role": "system", "content": "You answer questions by SQL. " * 40},
      {"role": "user", "content": "Which team played most after <1999>?"},
      a_call("execute_sql", query, "call_0"),
      {
        "role": "tool",
        "tool_call_id": "call_0",
        "content": "[('Reds', 12), ('" + "x" * 300 + "', 3)]",
      },
      a_call("execute_sql", '{"query": "SELECT 1', "call_1"),
      {"role": "tool", "tool_call_id": "call_1", "content": "not JSON"},
      a_call("commit_final_answer", '{"answers": ["Reds"]}', "call_2"),
    ),
  )
