"""Plays the expert on many tasks: how often it is right, and how fast.

  python -m environments.knowledgegraph.rehearsal --num_tasks 2000 \
    --mistake wrong_relation=0.3 --option "num_hops=(2, 2)"

For choosing the mistakes of a warm start, and for measuring the environment
without a policy. One session at a time, in one thread.
"""

import argparse
import asyncio
import collections
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.interface import Step
from agentrl_jax.env.loading import parse_options
from environments.knowledgegraph.environment import KnowledgeGraph

RIGHT = "right/"  # the metric that is named after a question's kind


@dataclasses.dataclass(frozen=True)
class Rehearsal:
  """What came of it."""

  rewards: Mapping[str, Sequence[float]]  # by kind of question
  num_steps: int
  seconds: float  # of processor time, tasks generated included

  @property
  def num_sessions(self) -> int:
    """How many attempts were played."""
    return sum(map(len, self.rewards.values()))

  @property
  def success(self) -> float:
    """The share of attempts that were right."""
    return sum(map(sum, self.rewards.values())) / self.num_sessions

  def report(self) -> str:
    """A line per kind, and two for all."""
    lines = [
      f"{kind:<16}{sum(rewards) / len(rewards):6.1%} of {len(rewards)}"
      for kind, rewards in sorted(self.rewards.items())
    ]
    sessions_per_s = self.num_sessions / self.seconds
    steps_per_s = self.num_steps / self.seconds
    return "\n".join(
      [
        *lines,
        f"{'all':<16}{self.success:6.1%} of {self.num_sessions}",
        f"{sessions_per_s:.0f} sessions and {steps_per_s:.0f} steps per second "
        "of processor time",
      ]
    )


async def rehearse(
  environment: KnowledgeGraph,
  *,
  split: str = "train",
  num_tasks: int,
  num_attempts: int = 1,
  mistakes: Mapping[str, float],
) -> Rehearsal:
  """Plays the first tasks of a split, one after the other."""
  rewards = collections.defaultdict(list)
  num_steps = 0
  began = time.process_time()
  for index in environment.indices(split)[:num_tasks]:
    task = Task("knowledgegraph", split, index)
    for attempt in range(num_attempts):
      steps = await _play(environment, task, attempt, mistakes)
      (metric,) = (m for m in steps[-1].metrics if m.startswith(RIGHT))
      rewards[metric.removeprefix(RIGHT)].append(steps[-1].reward)
      num_steps += len(steps) - 1
  return Rehearsal(rewards, num_steps, time.process_time() - began)


async def _play(
  environment: KnowledgeGraph,
  task: Task,
  seed: int,
  mistakes: Mapping[str, float],
) -> list[Step]:
  expert = environment.expert(task, seed=seed, mistakes=mistakes)
  async with environment.open(task, seed=seed) as session:
    steps = [await session.reset()]
    while steps[-1].status is Status.RUNNING:
      steps.append(await session.step(expert.answer(steps[-1].messages)))
  return steps


async def _main(arguments: argparse.Namespace) -> None:
  environment = KnowledgeGraph(**parse_options(arguments.option))
  try:
    done = await rehearse(
      environment,
      split=arguments.split,
      num_tasks=arguments.num_tasks,
      num_attempts=arguments.num_attempts,
      mistakes=parse_options(arguments.mistake),
    )
  finally:
    await environment.close()
  sys.stdout.write(done.report() + "\n")


def _parse(words: Sequence[str] | None = None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--num_tasks", type=int, default=1000)
  parser.add_argument("--num_attempts", type=int, default=1)
  parser.add_argument("--split", default="train")
  parser.add_argument(
    "--mistake", action="append", default=[], metavar="NAME=PROBABILITY"
  )
  parser.add_argument(
    "--option", action="append", default=[], metavar="KEY=VALUE"
  )
  return parser.parse_args(words)


if __name__ == "__main__":
  asyncio.run(_main(_parse()))
