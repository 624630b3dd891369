"""Sets a machine up for a task and judges the episode.

The right answer is computed before the policy's first command. Nothing that
judges runs on the policy's machine: files are read from outside, and check
scripts run on a fresh machine. If the machine cannot be read, the policy has
failed; if the task cannot be set up, that is an `EnvironmentFault`.
"""

import asyncio
import logging
import re
import time
from collections.abc import Sequence

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker.stream import Finished
from environments.os_interaction.judging import comparisons
from environments.os_interaction.judging.check_machine import (
  CHECK_COMMAND,
  Fingerprint,
  command_works,
  load_changes,
)
from environments.os_interaction.judging.repeats import Unfinished, to_the_end
from environments.os_interaction.machines.files import Changes, File, Unreadable
from environments.os_interaction.machines.machine import Machine
from environments.os_interaction.machines.started import (
  FreshMachine,
  require_engine,
)
from environments.os_interaction.tasks.outcomes import (
  ChoreOutcome,
  CommandMade,
  MachineState,
)
from environments.os_interaction.tasks.problem import (
  AnswerMatch,
  OSProblem,
  Script,
)

_log = logging.getLogger(__name__)

# Linux passes no longer argument to a script, so longer answers are wrong.
MAX_ARGUMENT_BYTES = 131_071
SET_UP_TIMEOUT_S = 120.0  # an init script; some of AgentBench's sleep a minute
JUDGE_TIMEOUT_S = 300.0  # one judgement; each of its steps has less
EXIT_TIMEOUT_S = 1.0  # a killed process may take a moment to end
# A file that the example writes gets a change time after that of `.at`; the
# clock's tick is a hundredth of a second. A folder's change time moves also
# with files that come and go, so names, modes and owners of all paths are
# compared as a checksum. Both notes are on a file system of their own.
_LIST = r"find / -xdev -printf '%m %U %G %p\n' 2>/dev/null | cksum"
_MARK = f"{_LIST} > /dev/shm/.listed; sleep 0.02; : > /dev/shm/.at; sleep 0.02"
_FIND_WRITTEN = (
  "find / -xdev ! -type d -cnewer /dev/shm/.at 2>/dev/null | head -n 1; "
  f"{_LIST} | cmp - /dev/shm/.listed; rm /dev/shm/.listed /dev/shm/.at"
)
_COMPILE = (
  'f=$(mktemp -d) && printf %s "$1" > $f/main.{suffix} && '
  '{compiler} -o $f/a.out $f/main.{suffix} && shift && exec $f/a.out "$@"'
)
_COMPILERS = {"c": ("c", "gcc"), "c++": ("cpp", "g++")}


def require_scripts(problem: OSProblem) -> None:
  """Raises `ConfigError` for a script of the task whose file is missing."""
  scripts = [*problem.init, problem.start, *problem.check]
  if None in problem.check:
    scripts.append(_example_of(problem))
  for script in scripts:
    if script is not None and comparisons.find(script.file) is None:
      _code_of(script)


async def set_up(problem: OSProblem, machine: Machine) -> None:
  """Runs the init scripts; raises `EnvironmentFault` if one fails."""
  for script in problem.init:
    done = await run_script(script, machine, (), limit_s=SET_UP_TIMEOUT_S)
    if done.code != 0:
      ending = (
        f"has not ended within {SET_UP_TIMEOUT_S:g} s"
        if done.code is None
        else f"ended with code {done.code}"
      )
      raise EnvironmentFault(
        f"an init script {ending}; the task is {problem.description[:80]!r}, "
        f"the end of the script's stderr {done.stderr[-300:]!r}"
      )


class Judge:
  """Judges one episode. Created by `prepare`, before the first command.

  `fresh_machine` starts another machine like the policy's at its start.
  """

  def __init__(
    self,
    problem: OSProblem,
    machine: Machine,
    fresh_machine: FreshMachine,
    *,
    limit_s: float,
  ):
    self._problem = problem
    self._machine = machine
    self._fresh_machine = fresh_machine
    self._limit_s = limit_s
    self.gold: Finished | None = None  # of the example
    self.example_wrote = False  # to the policy's machine
    self._initial_state = MachineState({})
    self._fingerprint = Fingerprint.of(Changes({}))

  @classmethod
  async def prepare(
    cls,
    problem: OSProblem,
    machine: Machine,
    fresh_machine: FreshMachine,
    *,
    limit_s: float,
    gold: Finished | None = None,
  ) -> "Judge":
    """Runs the example and reads from the machine what the task needs.

    If `example_wrote`, the policy must not play on this machine: set up another
    and prepare its judge with this one's `gold`.
    """
    judge = cls(problem, machine, fresh_machine, limit_s=limit_s)
    judge.gold = gold
    try:
      if None in problem.check and gold is None:
        await judge._run_example(_example_of(problem))
      if problem.outcome is not None:
        judge._initial_state = await judge._state(problem.outcome)
      if _has_scripts(problem):
        judge._fingerprint = Fingerprint.of(await machine.read_changes())
    except Unreadable as error:
      raise EnvironmentFault(
        f"the judge of {problem.description[:80]!r} cannot be prepared: {error}"
      ) from error
    return judge

  async def _run_example(self, example: Script) -> None:
    """Runs the example on the policy's machine, which is as it was set up."""
    if not self._problem.example_only_reads:
      await self._machine.run(
        ["/bin/sh", "-c", _MARK], limit_s=SET_UP_TIMEOUT_S
      )
    self.gold = await run_script(
      example, self._machine, (), limit_s=SET_UP_TIMEOUT_S
    )
    if not self._problem.example_only_reads:
      written = await self._machine.run(
        ["/bin/sh", "-c", _FIND_WRITTEN], limit_s=SET_UP_TIMEOUT_S
      )
      self.example_wrote = written.code is None or bool(written.stdout)

  async def require_engine(self) -> None:
    """Raises `EnvironmentFault` if the engine starts no fresh machine."""
    await require_engine(self._fresh_machine, self._limit_s)

  async def is_solved(self, answer: object) -> bool:
    """Judges the answer, or the state of the machine."""
    if self._problem.match is not None:
      return isinstance(answer, str) and matches(answer, self._problem.match)
    try:
      async with asyncio.timeout(JUDGE_TIMEOUT_S):
        if self._problem.outcome is not None:
          return await self._is_outcome_right(self._problem.outcome)
        return await self._passes_checks(str(answer))
    except (Unreadable, Unfinished) as error:
      _log.info("an episode has failed: %s", error)
      return False
    except TimeoutError as error:
      raise EnvironmentFault(
        f"the judge of {self._problem.description[:80]!r} has not judged "
        f"within {JUDGE_TIMEOUT_S:g} s; look at the load of the host and of "
        "the engine"
      ) from error

  async def _is_outcome_right(self, outcome: ChoreOutcome) -> bool:
    if isinstance(outcome, CommandMade):
      await self._machine.halt()
      async with self._fresh_machine() as fresh:
        return await command_works(
          outcome, self._machine, fresh, limit_s=self._limit_s
        )
    if not outcome.sees_processes:
      await self._machine.halt()  # no process may write while files are read
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    was_right = not outcome.sees_processes
    while True:
      state = await self._state(outcome)
      is_right = outcome.is_right(self._initial_state, state)
      if is_right and was_right:
        return True
      is_over = not outcome.sees_processes or time.monotonic() > deadline
      if is_over and not is_right:
        return False
      # Of several killed processes, one may be seen after another has ended.
      was_right = is_right
      await asyncio.sleep(EXIT_TIMEOUT_S / 10)

  async def _state(self, outcome: ChoreOutcome) -> MachineState:
    files: dict[str, File] = {}
    for path in outcome.paths:
      files.update(await self._machine.read_tree(path))
    if outcome.sees_processes:
      return MachineState(files, await self._machine.read_processes())
    return MachineState(files)

  async def _passes_checks(self, answer: str) -> bool:
    """Runs the checks; comparisons alone need no fresh machine."""
    if not _has_scripts(self._problem):
      return await self._is_checked(answer, None)
    await self._machine.halt()
    changes = await self._machine.read_changes()

    async def run() -> bool:
      async with self._fresh_machine() as fresh:
        if await load_changes(fresh, self._fingerprint, changes):
          return await self._is_checked(answer, fresh)
        return False

    async def control() -> bool:
      async with self._fresh_machine() as fresh:
        return await self._is_checked("", fresh)

    name = f"the check of {self._problem.description[:80]!r}"
    return await to_the_end(run, control, name)

  async def _is_checked(self, answer: str, fresh: Machine | None) -> bool:
    parameters: tuple[str, ...] = (answer,)
    for script in self._problem.check:
      output = await self._output_of(script, parameters, fresh)
      if output is None:
        return False
      parameters += (output,)
    return True

  async def _output_of(
    self,
    script: Script | None,
    parameters: tuple[str, ...],
    fresh: Machine | None,
  ) -> str | None:
    """Returns a check's output; None if the check does not pass."""
    if script is not None and (compare := _comparison(script)) is not None:
      passed = await asyncio.to_thread(comparisons.passes, compare, parameters)
      return "" if passed else None
    if not _are_valid_arguments(parameters):
      return None
    done = self.gold
    if script is not None:
      assert fresh is not None
      done = await run_script(
        script, fresh, parameters, limit_s=self._limit_s, prefix=CHECK_COMMAND
      )
    if done is not None and done.code is None:
      raise Unfinished(f"a check ran longer than {self._limit_s:g} s")
    if done is None or done.code != 0:
      return None
    return done.stdout.decode(errors="surrogateescape")


def matches(answer: str, rule: AnswerMatch) -> bool:
  """Applies the rule to the answer."""
  if rule.strip:
    answer = answer.strip()
  if rule.answer is not None:
    return answer == rule.answer
  return rule.regex is not None and bool(re.search(rule.regex, answer))


async def run_script(
  script: Script,
  machine: Machine,
  parameters: Sequence[str],
  *,
  limit_s: float,
  prefix: Sequence[str] = (),
) -> Finished:
  """Runs one of a task's scripts as root, in /root.

  `prefix` is a command, such as env, that runs the command after it.
  """
  argv = [*prefix, *_command(script, parameters)]
  return await machine.run(argv, limit_s=limit_s)


def _command(script: Script, parameters: Sequence[str]) -> list[str]:
  code = _code_of(script)
  if script.language == "bash":
    return ["bash", "-c", code, *(["--", *parameters] if parameters else [])]
  if script.language == "python":
    return ["python3", "-c", code, *parameters]
  suffix, compiler = _COMPILERS[script.language]
  command = _COMPILE.format(suffix=suffix, compiler=compiler)
  return ["bash", "-c", command, "--", code, *parameters]


def _code_of(script: Script) -> str:
  if script.code is None:
    raise ConfigError(
      f"a task needs the script {script.file!r}, which is not beside its file; "
      "set `scripts` to the folder of AgentBench's scripts"
    )
  return script.code


def _comparison(script: Script) -> comparisons.Comparison | None:
  return comparisons.find(script.file) if script.code is None else None


def _has_scripts(problem: OSProblem) -> bool:
  """Tells whether a check besides comparisons and the example must be run."""
  return any(
    script is not None and _comparison(script) is None
    for script in problem.check
  )


def _example_of(problem: OSProblem) -> Script:
  if problem.example is None:
    raise ConfigError(
      f"a task is judged by its example and has none: "
      f"{problem.description[:80]!r}"
    )
  return problem.example


def _are_valid_arguments(parameters: Sequence[str]) -> bool:
  for parameter in parameters:
    try:
      encoded = parameter.encode(errors="surrogateescape")
    except UnicodeEncodeError:
      return False
    if b"\0" in encoded or len(encoded) > MAX_ARGUMENT_BYTES:
      return False
  return True
