"""OS interaction: chores to do and questions to answer with bash.

Tasks are generated (splits train and test) or read from AgentBench's files
(split dev). Each episode has a Linux machine of its own: a Docker container, or
a sandbox of namespaces.
"""

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.task_sets import read_sets
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.docker.stream import Finished
from environments.options import OSInteractionOptions
from environments.os_interaction.expert import (
  MISTAKES,
  expert_for_generated,
  expert_for_loaded,
)
from environments.os_interaction.judging.judge import (
  Judge,
  require_scripts,
  set_up,
)
from environments.os_interaction.machines.machine import (
  MachineEngine,
  MachineLost,
)
from environments.os_interaction.machines.shell import Ending
from environments.os_interaction.machines.started import (
  MachineSource,
  StartedMachine,
  make_engine,
  shielded,
)
from environments.os_interaction.session import OSSession
from environments.os_interaction.tasks.agentbench import load_problems
from environments.os_interaction.tasks.generator import (
  GeneratedTask,
  TaskGenerator,
)
from environments.os_interaction.tasks.problem import OSProblem


class OSInteraction(IndexedEnvironment[GeneratedTask | OSProblem]):
  """Generated tasks; with `source`, also those of AgentBench's files.

  Its keyword arguments are the fields of `OSInteractionOptions`.
  """

  name = "os_interaction"
  mistakes = MISTAKES
  needs_one_loop = True  # warm machines belong to the loop that started them
  split_hint = "`source` adds AgentBench's files"
  _engine: MachineEngine
  __signature__ = inspect.signature(OSInteractionOptions)

  def __init__(self, **keywords: Any):
    self._options = options = OSInteractionOptions(**keywords)
    super().__init__(
      num_tasks=options.num_tasks,
      loaded=read_sets(
        options.source,
        functools.partial(load_problems, scripts=options.scripts),
      ),
    )
    self._generator = TaskGenerator(options)
    self._engine = make_engine(options)
    self._machines = MachineSource(
      self._engine,
      num_warm=options.num_warm,
      limit_s=options.command_limit_s,
      completes=options.upstream_quirks,
    )

  def generate(self, split: str, index: int) -> GeneratedTask:
    """Draws a task and its scripts."""
    return self._generator.generate(split, index)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Sets up a machine for the session; the seed changes nothing."""
    del seed
    problem = self._problem(task)
    require_scripts(problem)
    started, judge = await self._set_up(problem)
    try:
      yield OSSession(problem, judge, started.shell, self._options)
    finally:
      await shielded(started.remove())

  async def close(self) -> None:
    """Removes the warm machines and closes the engine."""
    await self._machines.close()
    await super().close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Plays the gold script, then answers with its output."""
    content = self.find(task)
    if isinstance(content, OSProblem):
      return expert_for_loaded(content, seed=seed, mistakes=mistakes)
    return expert_for_generated(content, seed=seed, mistakes=mistakes)

  async def _set_up(self, problem: OSProblem) -> tuple[StartedMachine, Judge]:
    """Sets up a machine; a second one if the example wrote to the first."""
    gold = None
    while True:
      started = await self._machines.take(problem.image)
      try:
        judge = await self._set_up_machine(problem, started, gold)
        if not judge.example_wrote:
          return started, judge
      except BaseException:
        await shielded(started.remove())
        raise
      gold = judge.gold
      await shielded(started.remove())

  async def _set_up_machine(
    self, problem: OSProblem, started: StartedMachine, gold: Finished | None
  ) -> Judge:
    try:
      await set_up(problem, started.machine)
      await started.machine.seal()
      if problem.start is not None and problem.start.code is not None:
        reply = await started.shell.execute(problem.start.code)
        if reply.ending is not Ending.COMPLETED:
          raise EnvironmentFault(
            f"the start script of {problem.description[:80]!r} does not end: "
            f"{reply.note}"
          )
      return await Judge.prepare(
        problem,
        started.machine,
        functools.partial(self._machines.fresh, problem.image),
        limit_s=self._options.command_limit_s,
        gold=gold,
      )
    except MachineLost as error:
      raise EnvironmentFault(
        f"the scripts of {problem.description[:80]!r} lost the machine: {error}"
      ) from error

  def _problem(self, task: Task) -> OSProblem:
    content = self.find(task)
    return content if isinstance(content, OSProblem) else content.problem
