"""Runs the agents' own program for as long as a run plays.

- The program is started again whenever it ends: it may take a pause between
  episodes, an evaluation for instance, for the end of the run.
- Programs that fail several times, with no episode finished between, end the
  run with the last lines that they wrote. To end without an error while
  episodes wait for an agent is to fail, too.
- At the end of the run the program and its children get SIGTERM, and SIGKILL
  if they are still there after `END_S`.
"""

import asyncio
import contextlib
import os
import pathlib
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping

from agentrl_jax.errors import ConfigError

MOST_FAILURES = 3  # one after the other
PAUSE_S = 1.0  # before the program is started again
END_S = 10.0
LAST_BYTES = 2000  # of the log, in an error


class AgentProgram:
  """A program and the file that it writes to.

  `{url}` and `{model}` in the command stand for the server's address and the
  run's name. `OPENAI_BASE_URL` and `OPENAI_API_KEY` are set, which the `openai`
  package reads.
  """

  def __init__(self, command: str, log: pathlib.Path, *, token: str | None):
    self._command, self._log, self._token = command, log, token

  @contextlib.asynccontextmanager
  async def running(
    self,
    url: str,
    model: str,
    *,
    num_finished: Callable[[], int],
    num_offered: Callable[[], int],
    fail: Callable[[ConfigError], None],
  ) -> AsyncIterator[None]:
    """Keeps the program running within the context.

    `num_finished` counts the episodes that agents finished, `num_offered` those
    that wait for one; `fail` is called once, if the program cannot go on.
    """
    words = [
      word.replace("{url}", url).replace("{model}", model)
      for word in shlex.split(self._command)
    ]
    environment = {
      **os.environ,
      "OPENAI_BASE_URL": url,
      "OPENAI_API_KEY": self._token or "-",
    }
    keeper = asyncio.create_task(
      self._keep(words, environment, num_finished, num_offered, fail)
    )
    try:
      yield
    finally:
      keeper.cancel()
      await asyncio.gather(keeper, return_exceptions=True)

  async def _keep(
    self,
    words: list[str],
    environment: Mapping[str, str],
    num_finished: Callable[[], int],
    num_offered: Callable[[], int],
    fail: Callable[[ConfigError], None],
  ) -> None:
    failures, finished = 0, num_finished()
    while failures < MOST_FAILURES:
      try:
        status = await self._run(words, environment)
      except OSError as error:
        fail(
          ConfigError(
            f"agents.program={self._command!r} cannot be started: {error}. "
            "Give a command that this machine has, with its arguments"
          )
        )
        return
      if num_finished() > finished:
        failures, finished = 0, num_finished()
      failures += status != 0 or num_offered() > 0
      await asyncio.sleep(PAUSE_S)
    fail(
      ConfigError(
        f"agents.program={self._command!r} ended {failures} times in a row "
        "with an error or while episodes waited for an agent, the last time "
        f"with status {status}, and no episode was finished between. Its last "
        f"lines, of {self._log}:\n{last_lines(self._log, LAST_BYTES)}"
      )
    )

  async def _run(self, words: list[str], environment: Mapping[str, str]) -> int:
    """Runs the program once; cancelling ends it."""
    with self._log.open("ab") as log:
      process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the run to pass on
      )
    try:
      return await process.wait()
    finally:
      await _end(process)


def last_lines(log: pathlib.Path, most: int) -> str:
  """Returns the end of a log, at most so many bytes."""
  with log.open("rb") as file:
    file.seek(max(log.stat().st_size - most, 0))
    text = file.read(most).decode(errors="replace")
  return text.strip() or "(it wrote nothing)"


async def _end(process: asyncio.subprocess.Process) -> None:
  """Ends the program's process group, children that outlived it included."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(END_S):
        await process.wait()
    os.killpg(process.pid, signal.SIGKILL)
