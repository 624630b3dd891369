"""Runs a task's tests on a fresh machine, and reads the reward from outside.

The policy is root of its machine, so nothing that it left running or loaded is
part of the tests: its files are copied to another machine, by the rules of
`os_interaction`'s judge. On top of those,

- programs in folders of the image's own PATH must be unchanged;
- files that Python and pytest load by themselves must not be new or changed;
- no link may lead to the tests, to their reward or to the kernel's files;
- tests, reward and solution are not copied from the policy.
"""

import asyncio
import functools
import json
import logging
import posixpath
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from agentrl_jax.data.records import finite_number
from agentrl_jax.errors import EnvironmentFault
from environments.harbor.planner import MachinePlanner, SetUpPlan
from environments.harbor.task import HarborTask
from environments.os_interaction.judging.check_machine import (
  Fingerprint,
  digest_of,
  load_changes,
)
from environments.os_interaction.judging.judge import JUDGE_TIMEOUT_S
from environments.os_interaction.judging.repeats import Unfinished, to_the_end
from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  LOAD_TIMEOUT_S,
  Changes,
  File,
  Tree,
  Unreadable,
  is_in,
)
from environments.os_interaction.machines.machine import HOME, PATH, Machine
from environments.os_interaction.machines.started import require_engine

TESTS, VERIFIER, ARTIFACTS = "/tests", "/logs/verifier", "/logs/artifacts"
_NOT_COPIED = (TESTS, VERIFIER, "/solution")
_NO_TARGETS = (*_NOT_COPIED, "/proc", "/dev", "/sys")
_LOADED_NAMES = frozenset(("conftest.py", "pytest.ini", ".pytest.ini"))
_LOADED_PATHS = frozenset(("/pyproject.toml", "/tox.ini", "/setup.cfg"))
_MODULES = sys.stdlib_module_names | {
  "pytest",
  "_pytest",
  "pluggy",
  "sitecustomize",
  "usercustomize",
}
_MAX_WORDS = 500  # paths of one command

_log = logging.getLogger(__name__)

Verdict = tuple[float, dict[str, float]]  # the reward, and metrics


class _Failed(Exception):
  """The policy has failed, whatever the tests would say."""


class HarborJudge:
  """Judges one episode; `prepare` it before the first command."""

  def __init__(
    self,
    task: HarborTask,
    machine: Machine,
    planner: MachinePlanner,
    plan: SetUpPlan,
    limit_s: float,
  ):
    self._task, self._machine = task, machine
    self._planner, self._plan = planner, plan
    self._limit_s = min(limit_s, task.test_limit_s)
    self._before = Fingerprint.of(Changes({}))
    self._num_runs = 0  # of the tests, with the policy's files

  async def prepare(self) -> None:
    """Reads the machine as it is set up."""
    try:
      if self._task.verifier is None:
        self._before = Fingerprint.of(await self._machine.read_changes())
    except Unreadable as error:
      raise EnvironmentFault(
        f"the judge of {self._task.name!r} cannot be prepared: {error}"
      ) from error

  async def require_engine(self) -> None:
    """Raises `EnvironmentFault` if the engine starts no fresh machine."""
    fresh = functools.partial(self._planner.fresh, self._plan, with_steps=False)
    await require_engine(fresh, LOAD_TIMEOUT_S)

  async def verdict(self) -> Verdict:
    """Runs the tests. A policy whose machine cannot be read has failed."""
    limit_s = JUDGE_TIMEOUT_S + 2 * self._limit_s
    try:
      async with asyncio.timeout(limit_s):
        await self._machine.halt()
        reward, metrics = await self._judged()
    except (_Failed, Unreadable, Unfinished) as error:
      _log.info("an episode of %s has failed: %s", self._task.name, error)
      reward, metrics = 0.0, {"tests_ended": 0.0}
    except TimeoutError as error:
      raise EnvironmentFault(
        f"the tests of {self._task.name!r} were not judged within {limit_s:g} "
        "s; look at the load of the host and of the engine"
      ) from error
    return reward, metrics | {"tests_again": float(self._num_runs > 1)}

  async def _judged(self) -> Verdict:
    plan, name = self._plan, f"the tests of {self._task.name!r}"
    if self._task.verifier is not None:
      plan = await self._planner.plan_of(self._task, self._task.verifier)
      changes = Changes(await self._artifacts())
    else:
      changes = await self._changes()
    run = functools.partial(self._run, plan)
    return await to_the_end(lambda: run(changes), lambda: run(None), name)

  async def _changes(self) -> Changes:
    """Reads what the policy wrote, which may not decide the tests."""
    changes = await self._machine.read_changes()
    changes = Changes(
      {path: f for path, f in changes.files.items() if _is_copied(path)},
      frozenset(path for path in changes.removed if _is_copied(path)),
    )
    path = self._env(self._plan)["PATH"]
    programs = _own_programs(path, self._plan.workdir)
    _require_untampered(changes, self._before, programs)
    return changes

  async def _run(self, plan: SetUpPlan, changes: Changes | None) -> Verdict:
    """Runs the tests on a clean machine; None is without the policy's files."""
    is_separate = self._task.verifier is not None
    with_steps = is_separate or changes is None
    self._num_runs += changes is not None
    async with self._planner.fresh(plan, with_steps=with_steps) as fresh:
      if changes is None:
        changes = Changes({})
      elif is_separate:
        await fresh.apply_changes(changes)
      elif not await load_changes(fresh, self._before, changes):
        raise _Failed("a program of the system was changed or hidden")
      return await self._tested(fresh, plan, changes.files)

  def _env(self, plan: SetUpPlan) -> dict[str, str]:
    """Returns the variables of the tests.

    A folder of PATH that is relative lies where the policy works: it is no part
    of the tests'.
    """
    env = {**plan.env, **self._task.test_env, "PYTHONNOUSERSITE": "1"}
    folders = [
      "/" + posixpath.normpath(folder).lstrip("/")
      for folder in env["PATH"].split(":")
      if folder.startswith("/")
    ]
    return env | {"PATH": ":".join(folders) or PATH}

  async def _artifacts(self) -> Tree:
    """Reads the paths that tests on a machine of their own get."""
    files: dict[str, File] = {}
    for path in (ARTIFACTS, *self._task.artifacts):
      path = posixpath.normpath(posixpath.join(self._plan.workdir, path))
      files |= await self._machine.read_tree(path)
    kinds = (FILE, FOLDER, LINK)
    return {
      path: file
      for path, file in files.items()
      if _is_copied(path) and file.kind in kinds
    }

  async def _tested(
    self, fresh: Machine, plan: SetUpPlan, copied: Tree
  ) -> Verdict:
    links = sorted(p for p, file in copied.items() if file.kind == LINK)
    for i in range(0, len(links), _MAX_WORDS):
      await _require_harmless(fresh, links[i : i + _MAX_WORDS])
    await self._load_tests(fresh)
    words = [f"{name}={value}" for name, value in self._env(plan).items()]
    script = (
      f"cd {shlex.quote(plan.workdir)} && "
      f"exec {TESTS}/test.sh > {VERIFIER}/test-stdout.txt 2>&1"
    )
    done = await fresh.run(
      ["/usr/bin/env", "-i", *words, "/bin/bash", "-c", script],
      limit_s=self._limit_s,
    )
    await fresh.halt()
    if done.code is None:
      raise Unfinished(f"the tests ran longer than {self._limit_s:g} s")
    return reward_of(await fresh.read_tree(VERIFIER))

  async def _load_tests(self, fresh: Machine) -> None:
    tests = {f"{TESTS}/{path}": f for path, f in self._task.tests.items()}
    script = f"{TESTS}/test.sh"
    tests[script] = File(FILE, 0o755, 0, 0, tests[script].content)
    folders = {path: File(FOLDER, 0o755, 0, 0) for path in (TESTS, VERIFIER)}
    removed = frozenset(folders)
    await fresh.apply_changes(Changes({**folders, **tests}, removed))


def reward_of(logs: Tree) -> Verdict:
  """Reads reward.json, else reward.txt, as Harbor does.

  Of several numbers, the one called reward counts, else their mean.
  """
  for name in ("reward.json", "reward.txt"):
    file = logs.get(f"{VERIFIER}/{name}")
    if file is None or file.kind != FILE:
      continue
    try:
      text = file.content.decode()
      given = json.loads(text) if name == "reward.json" else float(text)
      rewards = given if isinstance(given, dict) else {"reward": given}
      rewards = {key: finite_number(value) for key, value in rewards.items()}
      mean = sum(rewards.values()) / len(rewards)
    except (ValueError, RecursionError, ZeroDivisionError) as error:
      raise _Failed(f"{name} has no finite number: {error}") from error
    parts = {f"reward/{key}": value for key, value in rewards.items()}
    metrics = {"tests_ended": 1.0} | (parts if len(parts) > 1 else {})
    return rewards.get("reward", mean), metrics
  raise _Failed("the tests wrote no reward")


def _require_untampered(
  changes: Changes, before: Fingerprint, programs: Sequence[str]
) -> None:
  """Raises for a change that would decide the tests without their knowing.

  `programs` are folders in which nothing may change.
  """
  digests = {p: digest_of(f) for p, f in changes.files.items()}
  changed = [
    path
    for path in {*changes.files, *changes.removed, *before.files}
    if before.files.get(path) != digests.get(path)
    and (path not in digests or changes.files[path].kind != FOLDER)
  ]
  for path in changed:
    folder, name = posixpath.split(path)
    stem, _, suffix = name.partition(".")
    module = posixpath.basename(folder) if stem == "__init__" else stem
    is_code = suffix.endswith(("py", "pyc", "so")) and path not in before.files
    if is_in(path, programs):
      raise _Failed(f"the program or library {path!r} was changed")
    if name in _LOADED_NAMES or path in _LOADED_PATHS or suffix == "pth":
      raise _Failed(f"{path!r} is loaded by Python or pytest itself")
    if is_code and module in _MODULES and "__pycache__" not in folder:
      raise _Failed(f"{path!r} hides a module of Python")


def _own_programs(path: str, workdir: str) -> list[str]:
  """Returns folders of the image's own programs, and of their libraries.

  What lies around the working folder is the policy's to change.
  """
  folders = []
  for folder in set(path.split(":")) - set(PATH.split(":")):
    parent = posixpath.dirname(folder)
    is_shared = parent == "/" or any(
      is_in(kept, [parent]) for kept in (HOME, workdir)
    )
    folders.append(folder if is_shared else parent)
  return folders


def _is_copied(path: str) -> bool:
  return path != "/logs" and not is_in(path, _NOT_COPIED)


async def _require_harmless(fresh: Machine, links: list[str]) -> None:
  """Raises for a link that leads where no link may lead."""
  read = ["/bin/bash", "-c", 'readlink -mz -- "$@"', "bash", *links]
  done = await fresh.run(read, limit_s=LOAD_TIMEOUT_S)
  targets: list[Any] = done.stdout.split(b"\0")[:-1]
  if done.code != 0 or len(targets) != len(links):
    raise _Failed("a link leads to itself")
  for target in map(lambda data: data.decode(errors="replace"), targets):
    is_refused = target in ("/", "/logs") or is_in(target, _NO_TARGETS)
    if is_refused and target != "/dev/null":
      raise _Failed(f"a link leads to {target!r}")
