"""The real engine: TextWorld with ALFWorld's rules, one process per play.

TextWorld is slow (a second to load a game, 50 ms a step), leaks memory, and
cannot be used from two threads. Each play therefore has a process of its own.
The process serves several plays, one after another, and is then replaced. A
process that fails breaks the session of its play and no other.
"""

import asyncio
import contextlib
import importlib.util
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.alfworld.engines.engine import GameEngine, GameState, Play
from environments.alfworld.games.game import AGENTBENCH, Game
from environments.alfworld.games.game_files import recognise_dialect
from environments.alfworld.games.pddl import render_problem

WORKER = pathlib.Path(__file__).parent / "textworld_worker.py"
START_TIMEOUT_S = 120.0  # the imports take seconds on a busy machine
GAMES_PER_PROCESS = 16  # each game leaks about 3 MB
_MAX_LINE = 1 << 24

# Edits that turn the domain and grammar of alfworld 0.4.2 into AgentBench's.
_HELP_RULE = re.compile(r"\(:action help\b.*?\n\)\n", re.DOTALL)
_HELP_TEXT = re.compile(r"^action help \{.*?^\}$", re.DOTALL | re.MULTILINE)
_REPLACED_TEXTS = {
  '"move {o} to {r}"': '"put {o} in/on {r}"',
  "You move the {o.name} to the": "You put the {o.name} in/on the",
  "You arrive at {r.name}.": "You arrive at {lend.name}.",
}


class TextWorldEngine(GameEngine):
  """Keeps up to `num_processes` idle ones; starts more when all are busy.

  A reply that takes longer than `reply_limit_s` seconds is a fault, and its
  process is killed.
  """

  def __init__(self, *, num_processes: int, reply_limit_s: float):
    for package in ("alfworld", "textworld", "fast_downward"):
      if importlib.util.find_spec(package) is None:
        raise ConfigError(
          f"engine='textworld' needs the package {package}, which is not "
          "installed: pip install -e '.[alfworld]'"
        )
    self._num_processes = num_processes
    self._reply_limit_s = reply_limit_s
    self._idle: list[_Process] = []

  @contextlib.asynccontextmanager
  async def open(self, game: Game) -> AsyncIterator[Play]:
    """Opens a play in an idle process; starts a process if none is idle."""
    process = self._idle.pop() if self._idle else await _start()
    try:
      yield _TextWorldPlay(process, game, self._reply_limit_s)
    finally:
      if len(self._idle) < self._num_processes and process.is_reusable:
        self._idle.append(process)
      else:
        await process.stop()

  async def close(self) -> None:
    """Stops the idle processes; those of open plays keep running."""
    while self._idle:
      await self._idle.pop().stop()


class _TextWorldPlay(Play):
  def __init__(self, process: "_Process", game: Game, reply_limit_s: float):
    self._process = process
    self._game = game
    self._reply_limit_s = reply_limit_s

  async def begin(self) -> GameState:
    self._process.num_games += 1
    return await self._request({"game": _game_texts(self._game)})

  async def act(self, command: str) -> GameState:
    return await self._request({"command": command})

  async def _request(self, request: Mapping[str, object]) -> GameState:
    reply = await self._process.request(request, timeout_s=self._reply_limit_s)
    return GameState(
      str(reply["feedback"]), list(reply["commands"]), bool(reply["won"])
    )


class _Process:
  """A running `textworld_worker`; not reusable while a reply is pending."""

  def __init__(self, process: asyncio.subprocess.Process, stderr: Any):
    self._process = process
    self._stderr = stderr  # a file
    self._has_pending_reply = False
    self.num_games = 0

  @property
  def is_reusable(self) -> bool:
    return (
      not self._has_pending_reply
      and self._process.returncode is None
      and self.num_games < GAMES_PER_PROCESS
    )

  async def request(
    self, request: Mapping[str, object] | None, *, timeout_s: float
  ) -> Mapping[str, Any]:
    """Sends a request, unless it is None, and waits for one reply.

    Raises `EnvironmentFault` where the process is late or has ended. After
    that, and after cancellation, the process cannot be reused.
    """
    assert self._process.stdin is not None and self._process.stdout is not None
    self._has_pending_reply = True
    try:
      async with asyncio.timeout(timeout_s):
        if request is not None:
          self._process.stdin.write(json.dumps(request).encode() + b"\n")
          await self._process.stdin.drain()
        line = await self._process.stdout.readline()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"TextWorld has not replied for {timeout_s:g} s, the reply_limit_s"
      ) from error
    except (BrokenPipeError, ConnectionResetError) as error:
      raise EnvironmentFault(
        f"TextWorld's process has ended: {self._last_error()}"
      ) from error
    if not line:
      raise EnvironmentFault(
        f"TextWorld's process ended without a reply: {self._last_error()}"
      )
    self._has_pending_reply = False
    reply: Mapping[str, Any] = json.loads(line)
    return reply

  async def stop(self) -> None:
    """Kills the process and waits until it has ended, even if cancelled."""
    with contextlib.suppress(ProcessLookupError):
      self._process.kill()
    self._stderr.close()
    assert self._process.stdin is not None
    self._process.stdin.close()
    await asyncio.shield(self._process.wait())

  def _last_error(self) -> str:
    self._stderr.seek(0)
    lines = self._stderr.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no reason")


async def _start() -> _Process:
  stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its process
  subprocess = await asyncio.create_subprocess_exec(
    sys.executable,
    "-I",  # keeps modules beside the worker from shadowing packages
    str(WORKER),
    stdin=asyncio.subprocess.PIPE,
    stdout=asyncio.subprocess.PIPE,
    stderr=stderr,
    limit=_MAX_LINE,
  )
  process = _Process(subprocess, stderr)
  try:
    await process.request(None, timeout_s=START_TIMEOUT_S)
  except BaseException:
    await process.stop()
    raise
  return process


def _game_texts(game: Game) -> Mapping[str, str]:
  """Renders a generated game for TextWorld, or reads a loaded one's file."""
  if game.file is not None:
    data = json.loads(game.file.read_text(encoding="utf-8"))
    return {
      key: data[key] for key in ("pddl_domain", "grammar", "pddl_problem")
    }
  domain, grammar = _logic()
  return {
    "pddl_domain": domain,
    "grammar": grammar.replace("UNKNOWN GOAL", json.dumps(game.task)[1:-1]),
    "pddl_problem": render_problem(game),
  }


def _logic() -> tuple[str, str]:
  """Edits the installed alfworld's domain and grammar for generated games."""
  spec = importlib.util.find_spec("alfworld")
  if spec is None or spec.origin is None:
    raise ConfigError("the real engine needs the package alfworld")
  folder = pathlib.Path(spec.origin).parent / "data"
  domain = (folder / "alfred.pddl").read_text(encoding="utf-8")
  grammar = (folder / "alfred.twl2").read_text(encoding="utf-8")
  domain = _HELP_RULE.sub("", domain)
  grammar = _HELP_TEXT.sub("", grammar)
  for old, new in _REPLACED_TEXTS.items():
    grammar = grammar.replace(old, new)
  if recognise_dialect(domain, grammar) != AGENTBENCH:
    raise ConfigError(
      "the installed alfworld has other rules or words than 0.4.2, from which "
      "generated games are made: install alfworld==0.4.2"
    )
  return domain, grammar
