r"""Plays the expert of an environment on many tasks: success rate and speed.

  python -m agentrl_jax.env.rehearsal \
    --environment environments.dbbench:DBBench --num_tasks 3000 \
    --mistake no_cast=0.5 --mistake no_where=0.3 --option "num_columns=(4, 5)"

Use it to choose the mistakes of a warm start, and to measure an environment
without a policy. Sessions are played one after the other, in one thread.
"""

import argparse
import asyncio
import collections
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.interface import Environment, Step
from agentrl_jax.env.loading import load_environment, parse_options
from agentrl_jax.errors import AgentRLError

# The metric of an episode's end that is named after the kind of its task.
PREFIX = "right/"


@dataclasses.dataclass(frozen=True)
class Rehearsal:
  """Rewards and speed of the expert's episodes."""

  rewards: Mapping[str, Sequence[float]]  # of each kind of task
  num_steps: int
  seconds: float  # of processor time, generated tasks included

  @property
  def num_sessions(self) -> int:
    return sum(map(len, self.rewards.values()))

  @property
  def success(self) -> float:
    """Mean reward of all episodes."""
    return sum(map(sum, self.rewards.values())) / max(1, self.num_sessions)

  def report(self) -> str:
    """Returns a line per kind of task, and two for all."""
    lines = [
      f"{kind:<16}{sum(rewards) / len(rewards):6.1%} of {len(rewards)}"
      for kind, rewards in sorted(self.rewards.items())
      if kind
    ]
    seconds = max(self.seconds, 1e-9)
    return "\n".join(
      [
        *lines,
        f"{'all':<16}{self.success:6.1%} of {self.num_sessions}",
        f"{self.num_sessions / seconds:.0f} sessions and "
        f"{self.num_steps / seconds:.0f} steps per second of processor time",
      ]
    )


async def rehearse(
  environment: Environment,
  *,
  split: str = "train",
  num_tasks: int,
  num_attempts: int = 1,
  mistakes: Mapping[str, float],
) -> Rehearsal:
  """Plays the first tasks of a split, one episode after the other.

  The expert's seed is the task's index times `num_attempts`, plus the number of
  the attempt, so that no two episodes draw the same mistakes.
  """
  rewards = collections.defaultdict(list)
  num_steps = 0
  began_at = time.process_time()
  for index in environment.indices(split)[:num_tasks]:
    task = Task(environment.name, split, index)
    for attempt in range(num_attempts):
      steps = await _play(
        environment, task, index * num_attempts + attempt, mistakes
      )
      kind = next(
        (
          metric.removeprefix(PREFIX)
          for metric in steps[-1].metrics
          if metric.startswith(PREFIX)
        ),
        "",
      )
      rewards[kind].append(steps[-1].reward)
      num_steps += len(steps) - 1
  return Rehearsal(rewards, num_steps, time.process_time() - began_at)


async def _play(
  environment: Environment,
  task: Task,
  seed: int,
  mistakes: Mapping[str, float],
) -> Sequence[Step]:
  expert = environment.expert(task, seed=seed, mistakes=mistakes)
  async with environment.open(task, seed=seed) as session:
    steps = [await session.reset()]
    while steps[-1].status is Status.RUNNING:
      steps.append(await session.step(expert.answer(steps[-1].messages)))
  return steps


async def _rehearse_and_close(given: argparse.Namespace) -> Rehearsal:
  environment = load_environment(given.environment, parse_options(given.option))
  try:
    return await rehearse(
      environment,
      split=given.split,
      num_tasks=given.num_tasks,
      num_attempts=given.num_attempts,
      mistakes=parse_options(given.mistake),
    )
  finally:
    await environment.close()


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line, plays, and prints the report."""
  parser = argparse.ArgumentParser(
    prog="python -m agentrl_jax.env.rehearsal",
    description=__doc__.partition("\n")[0],
  )
  add = parser.add_argument
  add("--environment", required=True, metavar="MODULE:CLASS")
  add("--option", action="append", default=[], metavar="KEY=VALUE")
  add("--mistake", action="append", default=[], metavar="NAME=PROBABILITY")
  add("--split", default="train")
  add("--num_tasks", type=int, default=1000)
  add("--num_attempts", type=int, default=1, help="episodes per task")
  try:
    rehearsal = asyncio.run(_rehearse_and_close(parser.parse_args(arguments)))
  except (AgentRLError, NotImplementedError) as error:
    parser.error(str(error))
  sys.stdout.write(rehearsal.report() + "\n")


if __name__ == "__main__":
  main()
