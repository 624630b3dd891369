"""Sets a machine up for a task, and judges what was made of it.

What is right is found out before the policy's first command, and judged without
running anything on its machine: files are read from outside, check scripts run
on a machine of the judge's own. A machine that cannot be read was made so by
its policy, which has failed; a task that cannot be set up is a fault of ours.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence

from agentrl_jax.env.session_container_stream import Finished
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction.judging import comparisons as checks
from environments.os_interaction.judging.check_machine import (
  ENVIRONMENT,
  Fingerprint,
  load_for_check,
  works,
)
from environments.os_interaction.machines.files import Changes, File, Unreadable
from environments.os_interaction.machines.machine import Machine
from environments.os_interaction.tasks.outcomes import (
  CommandMade,
  Outcome,
  State,
)
from environments.os_interaction.tasks.problem import Match, Problem, Script

Fresh = Callable[[], contextlib.AbstractAsyncContextManager[Machine]]

_log = logging.getLogger(__name__)

# Longer answers are wrong before any script has seen them: Linux takes no
# longer argument.
MAX_ARGUMENT_BYTES = 131_071
SET_UP_S = 120.0  # for an init script; some of AgentBench's sleep for a minute
# Files that were written to are newer by the tick of a clock, a hundredth of a
# second; folders too, where files came and went, so of these names, modes and
# owners are compared. The notes are on a file system of their own, and go.
_LIST = r"find / -xdev -printf '%m %U %G %p\n' 2>/dev/null | cksum"
_MARK = f"{_LIST} > /dev/shm/.listed; sleep 0.02; : > /dev/shm/.at; sleep 0.02"
_FIND_MARKS = (
  "find / -xdev ! -type d -cnewer /dev/shm/.at 2>/dev/null | head -n 1; "
  f"{_LIST} | cmp - /dev/shm/.listed; rm /dev/shm/.listed /dev/shm/.at"
)
JUDGE_S = 300.0  # for all of one judgement; each of its steps has less
ENDING_S = 1.0  # what was told to end may take a moment
_COMPILE = (
  'f=$(mktemp -d) && printf %s "$1" > $f/main.{suffix} && '
  '{compiler} -o $f/a.out $f/main.{suffix} && shift && exec $f/a.out "$@"'
)
_COMPILERS = {"c": ("c", "gcc"), "c++": ("cpp", "g++")}


def require_scripts(problem: Problem) -> None:
  """Raises `ConfigError` for a script of the task that is not at hand."""
  scripts = [*problem.init, problem.start, *problem.check]
  if None in problem.check:
    scripts.append(_example_of(problem))
  for script in scripts:
    if script is not None and checks.find(script.file) is None:
      _code_of(script)


async def set_up(problem: Problem, machine: Machine) -> None:
  """Runs the init scripts; raises `EnvironmentFault` if one fails."""
  for script in problem.init:
    done = await run_script(script, machine, (), limit_s=SET_UP_S)
    if done.code != 0:
      raise EnvironmentFault(
        f"an init script {_how(done, SET_UP_S)}; the task is "
        f"{problem.description[:80]!r}, the script's last words "
        f"{done.stderr[-300:]!r}"
      )


class Judge:
  """Judges one attempt. Made by `prepare`, before the policy's first command.

  `fresh` makes another machine as the policy's was at its start.
  """

  def __init__(
    self, problem: Problem, machine: Machine, fresh: Fresh, *, limit_s: float
  ):
    self._problem = problem
    self._machine = machine
    self._fresh = fresh
    self._limit_s = limit_s
    self.gold: Finished | None = None  # what the example said
    self.is_marked = False  # the machine, by the example
    self._before = State({})
    self._written = Fingerprint.of(Changes({}))

  @classmethod
  async def prepare(
    cls,
    problem: Problem,
    machine: Machine,
    fresh: Fresh,
    *,
    limit_s: float,
    gold: Finished | None = None,
  ) -> "Judge":
    """Runs the example and takes the fingerprints that the task needs.

    An example that writes files leaves the judge `is_marked`: its machine is
    none to be played on. With its `gold` one for another machine can be made.
    """
    judge = cls(problem, machine, fresh, limit_s=limit_s)
    judge.gold = gold
    try:
      if None in problem.check and gold is None:
        await judge._run_example(_example_of(problem))
      if problem.outcome is not None:
        judge._before = await judge._state(problem.outcome)
      if _has_scripts(problem):
        judge._written = Fingerprint.of(await machine.changes())
    except Unreadable as error:
      raise EnvironmentFault(
        f"the judge of {problem.description[:80]!r} cannot be prepared: {error}"
      ) from error
    return judge

  async def _run_example(self, example: Script) -> None:
    """Runs it on the policy's machine, which is still as it was set up."""
    if not self._problem.example_only_reads:
      await self._machine.run(["/bin/sh", "-c", _MARK], limit_s=SET_UP_S)
    self.gold = await run_script(example, self._machine, (), limit_s=SET_UP_S)
    if not self._problem.example_only_reads:
      found = await self._machine.run(
        ["/bin/sh", "-c", _FIND_MARKS], limit_s=SET_UP_S
      )
      self.is_marked = found.code is None or bool(found.stdout)

  async def is_solved(self, answer: object) -> bool:
    """Whether the answer, or what was done to the machine, is right."""
    if self._problem.match is not None:
      return isinstance(answer, str) and matches(answer, self._problem.match)
    try:
      async with asyncio.timeout(JUDGE_S):
        if self._problem.outcome is not None:
          return await self._is_done(self._problem.outcome)
        return await self._passes(str(answer))
    except Unreadable as error:
      _log.info("an attempt has failed: %s", error)
      return False
    except TimeoutError as error:
      raise EnvironmentFault(
        f"the judge of {self._problem.description[:80]!r} has not judged "
        f"within {JUDGE_S:g} s; look at the load of the host and of the engine"
      ) from error

  async def _is_done(self, outcome: Outcome) -> bool:
    if isinstance(outcome, CommandMade):
      await self._machine.end()
      async with self._fresh() as own:
        return await works(outcome, self._machine, own, limit_s=self._limit_s)
    if not outcome.sees_processes:
      await self._machine.end()  # nothing is written any more
      return outcome.is_right(self._before, await self._state(outcome))
    ends_at = time.monotonic() + ENDING_S
    while not outcome.is_right(self._before, await self._state(outcome)):
      if time.monotonic() > ends_at:
        return False
      await asyncio.sleep(ENDING_S / 10)
    return True

  async def _state(self, outcome: Outcome) -> State:
    files: dict[str, File] = {}
    for place in outcome.places:
      files.update(await self._machine.look(place))
    if outcome.sees_processes:
      return State(files, await self._machine.processes())
    return State(files)

  async def _passes(self, answer: str) -> bool:
    """Runs the checks in turn; no machine is needed for comparisons alone."""
    if not _has_scripts(self._problem):
      return await self._pass_all(answer, None)
    await self._machine.end()
    after = await self._machine.changes()
    async with self._fresh() as own:
      if not await load_for_check(own, self._written, after):
        return False
      return await self._pass_all(answer, own)

  async def _pass_all(self, answer: str, own: Machine | None) -> bool:
    parameters: tuple[str, ...] = (answer,)
    for script in self._problem.check:
      output = await self._output_of(script, parameters, own)
      if output is None:
        return False
      parameters += (output,)
    return True

  async def _output_of(
    self,
    script: Script | None,
    parameters: tuple[str, ...],
    own: Machine | None,
  ) -> str | None:
    """What one of the checks says; None if it does not pass."""
    if script is not None and (compare := _comparison(script)) is not None:
      passed = await asyncio.to_thread(checks.passes, compare, parameters)
      return "" if passed else None
    if not _can_be_passed(parameters):
      return None
    done = self.gold
    if script is not None:
      assert own is not None
      done = await run_script(
        script, own, parameters, limit_s=self._limit_s, within=ENVIRONMENT
      )
    if done is None or done.code != 0:
      return None
    return done.stdout.decode(errors="surrogateescape")


def matches(answer: str, rule: Match) -> bool:
  """Whether the rule takes the answer."""
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
  within: Sequence[str] = (),
) -> Finished:
  """Runs one of a task's scripts as root, in /root.

  `within` is a command that runs another, which comes before it.
  """
  argv = [*within, *_command(script, parameters)]
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
      "say with `scripts` in which folder AgentBench's scripts are"
    )
  return script.code


def _comparison(script: Script) -> checks.Comparison | None:
  return checks.find(script.file) if script.code is None else None


def _has_scripts(problem: Problem) -> bool:
  """Tells whether a check must be run, beside comparisons and the example."""
  return any(
    script is not None and _comparison(script) is None
    for script in problem.check
  )


def _example_of(problem: Problem) -> Script:
  if problem.example is None:
    raise ConfigError(
      f"a task is judged by its example and has none: "
      f"{problem.description[:80]!r}"
    )
  return problem.example


def _can_be_passed(parameters: Sequence[str]) -> bool:
  for parameter in parameters:
    try:
      encoded = parameter.encode(errors="surrogateescape")
    except UnicodeEncodeError:
      return False
    if b"\0" in encoded or len(encoded) > MAX_ARGUMENT_BYTES:
      return False
  return True


def _how(done: Finished, limit_s: float) -> str:
  if done.code is None:
    return f"has not ended within {limit_s:g} s"
  return f"ended with code {done.code}"
