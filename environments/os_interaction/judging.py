"""Sets a machine up for a task, and judges what was made of it.

Scripts run apart from the policy's shell, each with its deadline. A machine
that its owner spoilt judges against them; a task that cannot be set up is a
fault of ours.
"""

import asyncio
import re
from collections.abc import Sequence

from agentrl_jax.env.session_container_stream import Finished
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction import checks
from environments.os_interaction.machine import Machine
from environments.os_interaction.problem import Match, Problem, Script

# Longer answers are wrong before any script has seen them: Linux takes no
# longer argument.
MAX_ARGUMENT_BYTES = 131_071
SET_UP_S = 120.0  # for an init script; some of AgentBench's sleep for a minute
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


async def is_solved(
  problem: Problem, machine: Machine, answer: object, *, limit_s: float
) -> bool:
  """Whether the answer, or what was done to the machine, is right."""
  if problem.match is not None:
    return isinstance(answer, str) and matches(answer, problem.match)
  parameters: tuple[str, ...] = (str(answer),)
  for script in problem.check:
    script = script or _example_of(problem)
    compare = checks.find(script.file) if script.code is None else None
    if compare is not None:
      if not await asyncio.to_thread(checks.passes, compare, parameters):
        return False
      parameters += ("",)
      continue
    if not _can_be_passed(parameters):
      return False
    done = await _run_anyhow(script, machine, parameters, limit_s=limit_s)
    if done.code != 0:
      return False
    parameters += (done.stdout.decode(errors="surrogateescape"),)
  return True


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
) -> Finished:
  """Runs one of a task's scripts as root, in /root."""
  return await machine.run(_command(script, parameters), limit_s=limit_s)


async def _run_anyhow(
  script: Script,
  machine: Machine,
  parameters: Sequence[str],
  *,
  limit_s: float,
) -> Finished:
  """As `run_script`, also where a policy has left no room for a process."""
  try:
    return await run_script(script, machine, parameters, limit_s=limit_s)
  except EnvironmentFault:
    await machine.restart()
    return await run_script(script, machine, parameters, limit_s=limit_s)


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
