"""Plays the expert on many tasks: how often it is right, and how fast.

  python -m environments.dbbench.rehearsal --num_tasks 3000 \
    --mistake no_cast=0.5 --mistake no_where=0.3 --option "num_columns=(4, 5)"

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
from environments.dbbench.environment import DBBench

RIGHT = "right/"  # the metric that is named after a question's type


@dataclasses.dataclass(frozen=True)
class Rehearsal:
  """What came of it."""

  rewards: Mapping[str, Sequence[float]]  # by type of question
  seconds: float  # of processor time, tasks generated included

  @property
  def num_sessions(self) -> int:
    return sum(map(len, self.rewards.values()))

  @property
  def success(self) -> float:
    return sum(map(sum, self.rewards.values())) / self.num_sessions

  def report(self) -> str:
    """A line per type, and one for all."""
    lines = [
      f"{type_:<12}{sum(rewards) / len(rewards):6.1%} of {len(rewards)}"
      for type_, rewards in sorted(self.rewards.items())
    ]
    rate = self.num_sessions / self.seconds
    return "\n".join(
      [
        *lines,
        f"{'all':<12}{self.success:6.1%} of {self.num_sessions}",
        f"{rate:.0f} sessions per second of processor time",
      ]
    )


async def rehearse(
  environment: DBBench,
  *,
  split: str = "train",
  num_tasks: int,
  mistakes: Mapping[str, float],
) -> Rehearsal:
  """Plays the first tasks of a split, each once, one after the other."""
  rewards = collections.defaultdict(list)
  began = time.process_time()
  for index in environment.indices(split)[:num_tasks]:
    step = await _play(environment, Task("dbbench", split, index), mistakes)
    (metric,) = (name for name in step.metrics if name.startswith(RIGHT))
    rewards[metric.removeprefix(RIGHT)].append(step.reward)
  return Rehearsal(rewards, time.process_time() - began)


async def _play(
  environment: DBBench, task: Task, mistakes: Mapping[str, float]
) -> Step:
  expert = environment.expert(task, seed=task.index, mistakes=mistakes)
  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    while step.status is Status.RUNNING:
      step = await session.step(expert.answer(step.messages))
  return step


async def _main(arguments: argparse.Namespace) -> None:
  environment = DBBench(**parse_options(arguments.option))
  try:
    done = await rehearse(
      environment,
      split=arguments.split,
      num_tasks=arguments.num_tasks,
      mistakes=parse_options(arguments.mistake),
    )
  finally:
    await environment.close()
  sys.stdout.write(done.report() + "\n")


def _parse(words: Sequence[str] | None = None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--num_tasks", type=int, default=1000)
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
