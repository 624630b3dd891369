"""Harbor's tasks as an environment: folders of them.

The policy works with bash on a machine of its own until it says that it has
finished; then the task's tests run on another machine and give the reward.
"""

import base64
import contextlib
import gzip
import inspect
import logging
import pathlib
import random
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Message, Task, ToolCall
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session, Step
from agentrl_jax.env.mistakes import draw_mistakes
from agentrl_jax.env.task_sets import find_sets
from agentrl_jax.errors import ConfigError
from environments.harbor.judge import HarborJudge
from environments.harbor.planner import MachinePlanner
from environments.harbor.task import HarborTask, make_task, read_folder, text_of
from environments.options import HarborOptions
from environments.os_interaction import prompts
from environments.os_interaction.expert import BashExpert, as_one_line
from environments.os_interaction.machines.files import write_archive
from environments.os_interaction.machines.machine import MachineEngine
from environments.os_interaction.machines.shell import Shell
from environments.os_interaction.machines.started import (
  MachineSource,
  make_engine,
  shielded,
)
from environments.os_interaction.session import ShellSession
from environments.os_interaction.tasks.problem import Script

SYSTEM_PROMPT = (
  "Solve the task with bash, as root of a Linux machine. Call finish_action "
  "when the task is done."
)
# What a line of solve.sh may begin with and still not be part of the work.
_PREAMBLE = ("#", "set -")
MAX_SOLUTION_CHARS = 60_000  # that an expert types

_log = logging.getLogger(__name__)


class HarborSession(ShellSession):
  """One episode of one task, on a machine that is set up."""

  tools = (prompts.BASH_ACTION, prompts.FINISH_ACTION)

  def __init__(
    self,
    task: HarborTask,
    judge: HarborJudge,
    shell: Shell,
    options: HarborOptions,
  ):
    request = Message("user", task.instruction)
    opening = (Message("system", SYSTEM_PROMPT), request)
    super().__init__(opening, shell, options.max_rounds)
    self.max_output_chars = options.max_output_chars
    self._judge = judge

  async def require_engine(self) -> None:
    await self._judge.require_engine()

  async def play(self, call: ToolCall, arguments: list[Any]) -> Step:
    """Ends the episode with the tests' reward."""
    if call.name != prompts.FINISH_ACTION.name:
      return self.reply(call, prompts.BAD_CALL)
    reward, metrics = await self._judge.verdict()
    return self.end(reward, metrics=metrics)


class Harbor(IndexedEnvironment[HarborTask]):
  """Tasks in Harbor's format, read from folders.

  Its keyword arguments are the fields of `HarborOptions`.
  """

  name = "harbor"
  mistakes = HarborOptions.mistakes
  cache_size = 256  # tasks with all their files
  needs_one_loop = True  # warm machines belong to the loop that started them
  split_hint = "`source` adds folders of tasks"
  _engine: MachineEngine
  __signature__ = inspect.signature(HarborOptions)

  def __init__(self, **keywords: Any):
    self.options = options = HarborOptions(**keywords)
    self._engine = make_engine(options)
    self._machines = MachineSource(
      self._engine, num_warm=options.num_warm, limit_s=options.command_limit_s
    )
    self._planner = MachinePlanner(self._machines, options)
    super().__init__(num_tasks={}, loaded=self._sets())

  def load(self, loaded: pathlib.Path) -> HarborTask:
    """Reads the folder of a task."""
    return make_task(
      loaded.name, read_folder(loaded), network=self.options.network
    )

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Sets up a machine for the session; the seed changes nothing."""
    del seed
    content = self.find(task)
    plan = await self._planner.plan_of(content, content.machine)
    started = await self._planner.start(plan)
    limit_s = self.options.test_limit_s
    judge = HarborJudge(content, started.machine, self._planner, plan, limit_s)
    try:
      await judge.prepare()
      yield HarborSession(content, judge, started.shell, self.options)
    finally:
      await shielded(started.remove())

  async def close(self) -> None:
    """Removes the warm machines and closes the engine."""
    await self._machines.close()
    await super().close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Plays solution/solve.sh, and finishes."""
    content = self._solved(task)
    rng = random.Random(f"{content.instruction}/{seed}")
    drawn = draw_mistakes(
      mistakes, self.mistakes, rng, where=f"the expert of {self.name}"
    )
    script = "" if "nothing" in drawn else typed_solution(content)
    if len(script) > MAX_SOLUTION_CHARS:
      raise NotImplementedError(
        f"the solution of {content.name!r} has {len(script)} characters as one "
        f"command, and an expert types {MAX_SOLUTION_CHARS}"
      )
    return BashExpert(script, needs_answer=False, mistakes=drawn)

  def _solved(self, task: Task) -> HarborTask:
    content = self.find(task)
    if "solve.sh" not in content.solution:
      raise NotImplementedError(
        f"Harbor's task {content.name!r} has no solution/solve.sh"
      )
    return content

  def _sets(self) -> Mapping[str, Sequence[pathlib.Path]]:
    """Lists the tasks of each split; of a lone folder, a tenth are the test."""
    source = self.options.source
    root = pathlib.Path(source)
    if not source:
      raise ConfigError(
        "source is empty: name the folder of Harbor's tasks, or more as in "
        "train=PATH,test=PATH"
      )
    if not root.is_dir():
      sets = find_sets(source).items()
      return {name: self._playable(path) for name, path in sets}
    if all((root / name).is_dir() for name in SPLITS):
      return {name: self._playable(root / name) for name in SPLITS}
    tasks = sorted(
      self._playable(root), key=lambda path: zlib.crc32(path.name.encode())
    )
    if len(tasks) == 1:
      raise ConfigError(
        f"source={source!r} holds one task, which cannot be train and test: "
        "name the folder of each, as in train=PATH,test=PATH"
      )
    num_test = max(1, len(tasks) // 10)
    return {"test": tasks[:num_test], "train": tasks[num_test:]}

  def _playable(self, path: pathlib.Path) -> Sequence[pathlib.Path]:
    """Lists a folder's tasks; refuses or skips what cannot be played."""
    playable, refused = [], []
    for folder in _task_folders(path):
      try:
        self._planner.require_playable(self.load(folder))
        playable.append(folder)
      except ConfigError as error:
        refused.append(str(error))
    for reason in refused if self.options.skip else ():
      _log.warning("left out: %s", reason)
    if playable and (self.options.skip or not refused):
      return playable
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    hint = "; skip=True leaves such tasks out" if playable else ""
    raise ConfigError(f"{refused[0]}{more}{hint}")


def typed_solution(task: HarborTask) -> str:
  """Returns solve.sh as one command of a shell.

  One line of a lone script is typed as it stands. Anything else is unpacked to
  /solution, as Harbor's oracle does, and run there.
  """
  lines = text_of(task.solution["solve.sh"]).splitlines()
  work = [line for line in lines if line and not line.startswith(_PREAMBLE)]
  if len(work) == 1 and len(task.solution) == 1:
    return as_one_line(Script("bash", work[0]))
  files = {f"/solution/{path}": f for path, f in task.solution.items()}
  packed = base64.b64encode(gzip.compress(write_archive(files), mtime=0))
  return (
    f"echo {packed.decode()} | base64 -d | tar -xz -C / && "
    "bash /solution/solve.sh 2>&1 < /dev/null"
  )


def _task_folders(path: pathlib.Path) -> Sequence[pathlib.Path]:
  """Finds a task, the tasks of a folder, or those of the folders in it."""
  for pattern in ("task.toml", "*/task.toml", "*/*/task.toml"):
    if folders := sorted(config.parent for config in path.glob(pattern)):
      return folders
  raise ConfigError(
    f"{str(path)!r} holds no Harbor task: no task.toml is in it, nor one or "
    "two folders below"
  )
