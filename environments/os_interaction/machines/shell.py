"""The shell of an episode: what is typed into it, and what comes of that.

One bash lives through the episode, as in AgentBench. A script has its deadline
and may say so much; one that goes beyond is interrupted as by Ctrl-C, and if
that does not help, with every process of the machine. Either is told.
"""

import asyncio
import dataclasses
import enum
import time

from agentrl_jax.env.session_container_stream import Terminal
from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.machines.machine import Machine
from environments.os_interaction.machines.terminal_output import Hearing

LOGIN = ("/bin/bash", "--login")
FIRST_PROMPT_S = 10.0
INTERRUPT_S = 1.0  # for the shell to come back after Ctrl-C
RESTART_S = 30.0
QUIET_S = 0.3  # silence after a prompt: no typed line is left
ASKING_S = 3.0  # silence after what looks like a question
MAX_HEARD_BYTES = 16 << 20
CTRL_C = b"\x03"
# A tab that is typed is a tab, and no wish to have a word completed.
_SETTINGS = " bind 'set disable-completion on'"


class Ending(enum.Enum):
  """How a script ended; the value is told to the policy, if there is one."""

  BY_ITSELF = ""
  TOO_LONG = "The command was stopped: it ran longer than {limit_s:g} seconds."
  TOO_MUCH = "The command was stopped: its output was endless."
  UNFINISHED = "The command was stopped: it is unfinished."
  ASKING = "The command was stopped: it waited for input."
  SHELL_GONE = "The shell has ended. There is a new one."


@dataclasses.dataclass(frozen=True)
class Reply:
  """What a script said, and what had to be done about it."""

  text: str
  note: str = ""
  ending: Ending = Ending.BY_ITSELF


class Shell:
  """A login shell on a machine. Made by `open`."""

  def __init__(self, machine: Machine, terminal: Terminal, *, limit_s: float):
    self._machine = machine
    self._terminal = terminal
    self._limit_s = limit_s

  @classmethod
  async def open(
    cls, machine: Machine, *, limit_s: float, completes: bool = False
  ) -> "Shell":
    """Waits until the shell has asked for its first line."""
    shell = cls(machine, await machine.terminal(LOGIN), limit_s=limit_s)
    try:
      await shell._begin(completes)
    except BaseException:
      await shell.close()
      raise
    return shell

  async def execute(self, script: str) -> Reply:
    """Types a script and waits for its end, its deadline or its excess."""
    hearing, ending = await self._type(script.encode(), self._limit_s)
    note = ending.value.format(limit_s=self._limit_s)
    if ending is Ending.SHELL_GONE:
      await self._replace()
    elif ending is not Ending.BY_ITSELF and not await self._interrupt():
      note += " So was every other process, and there is a new shell."
      await self._restart()
    return Reply(hearing.text(), note, ending)

  async def close(self) -> None:
    """Hangs up."""
    await self._terminal.close()

  async def _begin(self, completes: bool) -> None:
    hearing = Hearing(num_lines=0)
    if await self._listen(hearing, FIRST_PROMPT_S) is not Ending.BY_ITSELF:
      raise EnvironmentFault(
        f"no prompt of {' '.join(LOGIN)} within {FIRST_PROMPT_S:g} s of its "
        f"start; it says {hearing.text()[:200]!r}"
      )
    if not completes:
      await self._type(_SETTINGS.encode(), FIRST_PROMPT_S)

  async def _type(
    self, script: bytes, limit_s: float
  ) -> tuple[Hearing, Ending]:
    num_lines = script.count(b"\n") + script.count(b"\r") + 1
    hearing = Hearing(num_lines)
    self._terminal.write(script + b"\n")
    return hearing, await self._listen(hearing, limit_s)

  async def _listen(self, hearing: Hearing, limit_s: float) -> Ending:
    ends_at = time.monotonic() + limit_s
    while True:
      left_s = ends_at - time.monotonic()
      silence = _meaning_of_silence(hearing)
      wait_s = left_s if silence is None else min(left_s, silence[1])
      try:
        async with asyncio.timeout(max(wait_s, 0)):
          data = await self._terminal.read()
      except TimeoutError:
        if silence is None or left_s < silence[1]:
          return Ending.TOO_LONG
        return silence[0]
      if not data:
        return Ending.SHELL_GONE
      hearing.feed(data)
      if hearing.is_done:
        return Ending.BY_ITSELF
      if hearing.num_bytes > MAX_HEARD_BYTES:
        return Ending.TOO_MUCH

  async def _interrupt(self) -> bool:
    """Presses Ctrl-C; whether the shell came back."""
    hearing = Hearing(num_lines=0)
    self._terminal.write(CTRL_C)
    return await self._listen(hearing, INTERRUPT_S) is Ending.BY_ITSELF

  async def _restart(self) -> None:
    await self.close()
    try:
      async with asyncio.timeout(RESTART_S):
        await self._machine.restart()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"a machine's processes have not ended within {RESTART_S:g} s of "
        "being killed; look at the host's load"
      ) from error
    await self._replace()

  async def _replace(self) -> None:
    """A new shell, for which everything else ends if it must."""
    try:
      await self._reopen()
    except EnvironmentFault:
      await self._machine.restart()
      await self._reopen()

  async def _reopen(self) -> None:
    await self.close()
    self._terminal = await self._machine.terminal(LOGIN)
    await self._begin(completes=False)


def _meaning_of_silence(hearing: Hearing) -> tuple[Ending, float] | None:
  """What it means if nothing is said for how many seconds; None: patience."""
  if hearing.is_unfinished:
    return Ending.UNFINISHED, QUIET_S
  if hearing.may_be_done:
    return Ending.BY_ITSELF, QUIET_S
  if hearing.may_be_asking:
    return Ending.ASKING, ASKING_S
  return None
