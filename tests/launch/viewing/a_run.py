"""A run's folder as training leaves it, for tests of how it is shown."""

import dataclasses
import json
import pathlib

import numpy as np

from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.record_file import write_groups
from agentrl_jax.data.records import (
  Group,
  LearnedTurn,
  Status,
  Task,
  Trajectory,
)
from configs import quickstart
from launch.storage.run_directory import RunDirectory
from tests.launch.reports import synthetic_run

# What a policy or a tool might write to take over the page that shows it.
HOSTILE = (
  "</script><script>document.title = 'taken'</script>"
  "<img src=x onerror=document.title='taken'>"
)


def make_run(root: pathlib.Path, *, updates: int = 3) -> RunDirectory:
  """Writes a run of `updates` updates, and an evaluation."""
  run = RunDirectory(root)
  config = quickstart.get_config()
  config.name = root.name
  run.keep_config(config)
  synthetic_run.write_metrics(root, num_steps=max(updates, 1))
  texts = [f"the team {n} <played>; {HOSTILE} says 'ü'" for n in range(99)]
  train_tokenizer(texts, vocab_size=1000).save(str(run.tokenizer))
  for update in range(updates):
    add_update(run, update)
  evaluated = a_member(0, 0, reward=1.0)
  write_groups(
    run.trajectories_of("rl", "greedy"),
    [Group("test-17", evaluated.task, (evaluated,))],
  )
  return run


def add_update(run: RunDirectory, update: int) -> None:
  """Writes the groups of one more update: two, of three attempts each."""
  write_groups(
    run.trajectories(update),
    [a_group(update, task) for task in synthetic_run.TASKS],
    learned,
  )


def learned(trajectory: Trajectory) -> list[LearnedTurn] | None:
  """The learner's view of an attempt; the last one was not trained on."""
  if trajectory.attempt == 2:
    return None
  return [
    LearnedTurn(
      logprob=turn.behavior_logprob + np.float32(0.3),
      advantage=np.full(len(turn.sampled), 1.25 - trajectory.attempt),
    )
    for turn in trajectory.turns
  ]


def a_group(update: int, name: str) -> Group:
  """Three attempts, of which the first succeeds and one ran out of turns."""
  members = tuple(
    dataclasses.replace(
      a_member(attempt, update, reward=float(attempt == 0)),
      task=Task(name, "train", 100 + update),
    )
    for attempt in range(3)
  )
  return Group(f"{name}/{update}", members[0].task, members)


def a_member(attempt: int, update: int, *, reward: float) -> Trajectory:
  """Returns an attempt; all begin alike, and end with what they answered."""
  whole = synthetic_run.a_trajectory(reward=reward)
  last = synthetic_run.a_call(
    "commit_final_answer", json.dumps({"answers": [attempt, HOSTILE]}), "call_2"
  )
  return dataclasses.replace(
    whole,
    group_id=f"{update}",
    attempt=attempt,
    status=Status.TASK_LIMIT_REACHED if attempt == 2 else Status.COMPLETED,
    metrics={"success": reward},
    transcript=(*whole.transcript[:-1], last),
    turns=(
      *whole.turns[:-1],
      dataclasses.replace(whole.turns[-1], is_cut=attempt == 2),
    ),
  )
