"""The real engine: TextWorld with ALFWorld's rules, a process per play.

TextWorld is slow (a second to load a game, 50 ms a step), leaks, and cannot be
used from two threads. So each play has a process to itself, which is used again
for the next few games and then replaced. Whatever a process does, its session
alone feels it.
"""

import asyncio
import contextlib
import importlib.util
import json
import pathlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.alfworld.engines.engine import Engine, Play, Scene
from environments.alfworld.engines.rendering import render_game
from environments.alfworld.games.game import Game

WORKER = pathlib.Path(__file__).parent / "textworld_worker.py"
START_LIMIT_S = 120.0  # the imports take seconds on a busy machine
GAMES_PER_PROCESS = 16  # some 3 MB are lost with each
_MAX_LINE = 1 << 24


class TextWorldEngine(Engine):
  """Keeps `num_processes` at hand; more are started when they are all busy.

  A reply that takes longer than `reply_limit_s` seconds is a fault, and ends
  the process that owes it.
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
    """A play in a process of its own; waits for one to start."""
    process = self._idle.pop() if self._idle else await _start()
    try:
      yield _TextWorldPlay(process, game, self._reply_limit_s)
    finally:
      keep = len(self._idle) < self._num_processes and process.is_usable
      if keep:
        self._idle.append(process)
      else:
        await process.stop()

  async def close(self) -> None:
    """Stops the processes at hand; plays that are open keep theirs."""
    while self._idle:
      await self._idle.pop().stop()


class _TextWorldPlay(Play):
  def __init__(self, process: "_Process", game: Game, reply_limit_s: float):
    self._process = process
    self._game = game
    self._reply_limit_s = reply_limit_s

  async def begin(self) -> Scene:
    self._process.num_games += 1
    return await self._ask({"game": render_game(self._game)})

  async def act(self, command: str) -> Scene:
    return await self._ask({"command": command})

  async def _ask(self, order: Mapping[str, object]) -> Scene:
    answer = await self._process.ask(order, limit_s=self._reply_limit_s)
    return Scene(
      str(answer["feedback"]), list(answer["commands"]), bool(answer["won"])
    )


class _Process:
  """One worker; usable while it owes no answer."""

  def __init__(self, process: asyncio.subprocess.Process, errors: Any):
    self._process = process
    self._errors = errors  # its stderr, a file
    self._owes = False
    self.num_games = 0

  @property
  def is_usable(self) -> bool:
    return (
      not self._owes
      and self._process.returncode is None
      and self.num_games < GAMES_PER_PROCESS
    )

  async def ask(
    self, order: Mapping[str, object] | None, *, limit_s: float
  ) -> Mapping[str, Any]:
    """The answer to an order, or to none; a fault if none comes in time."""
    assert self._process.stdin is not None and self._process.stdout is not None
    self._owes = True
    try:
      async with asyncio.timeout(limit_s):
        if order is not None:
          self._process.stdin.write(json.dumps(order).encode() + b"\n")
          await self._process.stdin.drain()
        line = await self._process.stdout.readline()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"TextWorld owes a reply for {limit_s:g} s, the reply_limit_s"
      ) from error
    except (BrokenPipeError, ConnectionResetError) as error:
      raise EnvironmentFault(
        f"TextWorld is gone: {self._last_words()}"
      ) from error
    if not line:
      raise EnvironmentFault(f"TextWorld broke off: {self._last_words()}")
    self._owes = False
    answer: Mapping[str, Any] = json.loads(line)
    return answer

  async def stop(self) -> None:
    """Kills it at once; waits until it is gone, even if cancelled."""
    with contextlib.suppress(ProcessLookupError):
      self._process.kill()
    self._errors.close()
    assert self._process.stdin is not None
    self._process.stdin.close()
    await asyncio.shield(self._process.wait())

  def _last_words(self) -> str:
    self._errors.seek(0)
    lines = self._errors.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no reason")


async def _start() -> _Process:
  errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its process
  started = await asyncio.create_subprocess_exec(
    sys.executable,
    "-I",  # the modules beside the worker must not pass for others
    str(WORKER),
    stdin=asyncio.subprocess.PIPE,
    stdout=asyncio.subprocess.PIPE,
    stderr=errors,
    limit=_MAX_LINE,
  )
  process = _Process(started, errors)
  try:
    await process.ask(None, limit_s=START_LIMIT_S)
  except BaseException:
    await process.stop()
    raise
  return process
