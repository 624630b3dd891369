"""The episode's shell: types scripts into one bash and reads their replies.

One bash lives through the episode, as in AgentBench. A script that exceeds its
time or output limit is interrupted with Ctrl-C; if the shell does not come
back, every process of the machine is ended. The reply says so. If no shell
starts any more, because of what the policy did to bash, its profile or the
system, the machine is lost.
"""

import asyncio
import dataclasses
import enum
import time
from collections.abc import Sequence

from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.docker.stream import Terminal
from environments.os_interaction.machines.deadlines import fault_after
from environments.os_interaction.machines.machine import Machine, MachineLost
from environments.os_interaction.machines.terminal_output import TerminalOutput

LOGIN = ("/bin/bash", "--login")
PLAIN = ("/bin/bash", "--noprofile", "--norc")
FIRST_PROMPT_TIMEOUT_S = 10.0  # before the policy's first command
NEXT_PROMPT_TIMEOUT_S = 3.0  # of a shell that takes the place of another
INTERRUPT_TIMEOUT_S = 1.0  # for the prompt after Ctrl-C
RESTART_TIMEOUT_S = 30.0
PROMPT_SILENCE_S = 0.3  # after a prompt: no typed line is left
QUESTION_SILENCE_S = 3.0  # after output that looks like a question
MAX_SCRIPT_OUTPUT_BYTES = 16 << 20
CTRL_C = b"\x03"
# A typed tab is a tab, not a request to complete a word; and a shell without a
# profile has the prompt that a reply is freed of.
_SETTINGS = (
  " bind 'set disable-completion on'; "
  r"[[ $PS1 == *@* ]] || PS1='\u@\h:\w\$ '"
)


class Ending(enum.Enum):
  """Outcome of a script; the policy reads the value after the output."""

  COMPLETED = ""
  TIMED_OUT = "The command was stopped: it ran longer than {limit_s:g} seconds."
  TOO_MUCH_OUTPUT = "The command was stopped: its output was endless."
  UNFINISHED = "The command was stopped: it is unfinished."
  WAITS_FOR_INPUT = "The command was stopped: it waited for input."
  SHELL_EXITED = "The shell has ended. There is a new one."


@dataclasses.dataclass(frozen=True)
class ShellReply:
  """Output of a script, and a note for the policy if the script was stopped."""

  text: str
  note: str
  ending: Ending


class Shell:
  """A login shell on a machine. Created by `open`."""

  def __init__(self, machine: Machine, terminal: Terminal, *, limit_s: float):
    self._machine = machine
    self._terminal = terminal
    self._limit_s = limit_s
    self._settings = _SETTINGS  # typed first into every shell

  @classmethod
  async def open(
    cls, machine: Machine, *, limit_s: float, completes: bool = False
  ) -> "Shell":
    """Waits for the first prompt.

    With `completes`, a typed tab completes words, as on AgentBench's terminal.
    """
    try:
      return await cls._open(machine, limit_s, completes=completes)
    except MachineLost as error:
      raise EnvironmentFault(f"a new machine has no shell: {error}") from error

  @classmethod
  async def _open(
    cls, machine: Machine, limit_s: float, *, completes: bool
  ) -> "Shell":
    shell = cls(machine, await machine.terminal(LOGIN), limit_s=limit_s)
    try:
      await shell._wait_for_prompt(FIRST_PROMPT_TIMEOUT_S, completes=completes)
    except BaseException:
      await shell.close()
      raise
    return shell

  async def begin(self, script: str) -> None:
    """Types a script, here and first into each shell that replaces this one.

    Raises `EnvironmentFault` if the script does not end.
    """
    self._settings += f"; {script}"
    reply = await self.execute(script)
    if reply.ending is not Ending.COMPLETED:
      raise EnvironmentFault(
        f"the shell's first script {script[:80]!r} does not end: {reply.note}"
      )

  async def execute(self, script: str) -> ShellReply:
    """Types a script and waits for its end or one of its limits."""
    output, ending = await self._type(script.encode(), self._limit_s)
    note = ending.value.format(limit_s=self._limit_s)
    if ending is Ending.SHELL_EXITED:
      await self._replace_shell()
    elif ending is not Ending.COMPLETED and not await self._interrupt():
      note += " So was every other process, and there is a new shell."
      await self._end_processes()
      await self._replace_shell()
    return ShellReply(output.text(), note, ending)

  async def close(self) -> None:
    """Hangs up the terminal."""
    await self._terminal.close()

  async def _wait_for_prompt(
    self, limit_s: float, *, completes: bool = False
  ) -> None:
    output = TerminalOutput(num_lines=0)
    ending = await self._read(output, limit_s)
    if ending is Ending.COMPLETED and not completes:
      _, ending = await self._type(self._settings.encode(), limit_s)
    if ending is not Ending.COMPLETED:
      raise MachineLost(
        "The machine was stopped: its new shell has ended, or shown no prompt "
        f"within {limit_s:g} s; its output is {output.text()[:200]!r}"
      )

  async def _type(
    self, script: bytes, limit_s: float
  ) -> tuple[TerminalOutput, Ending]:
    num_lines = script.count(b"\n") + script.count(b"\r") + 1
    output = TerminalOutput(num_lines)
    self._terminal.write(script + b"\n")
    return output, await self._read(output, limit_s)

  async def _read(self, output: TerminalOutput, limit_s: float) -> Ending:
    """Reads until the output or a silence after it tells the ending."""
    deadline = time.monotonic() + limit_s
    while True:
      left_s = deadline - time.monotonic()
      silence = _meaning_of_silence(output)
      wait_s = left_s if silence is None else min(left_s, silence[1])
      try:
        async with asyncio.timeout(max(wait_s, 0)):
          data = await self._terminal.read()
      except TimeoutError:
        if silence is None or left_s < silence[1]:
          return Ending.TIMED_OUT
        return silence[0]
      if not data:
        return Ending.SHELL_EXITED
      output.feed(data)
      if output.is_done:
        return Ending.COMPLETED
      if output.num_bytes > MAX_SCRIPT_OUTPUT_BYTES:
        return Ending.TOO_MUCH_OUTPUT

  async def _interrupt(self) -> bool:
    """Presses Ctrl-C; True if the shell shows its prompt again."""
    output = TerminalOutput(num_lines=0)
    self._terminal.write(CTRL_C)
    return await self._read(output, INTERRUPT_TIMEOUT_S) is Ending.COMPLETED

  async def _end_processes(self) -> None:
    await self.close()
    async with fault_after(
      RESTART_TIMEOUT_S,
      f"a machine's processes have not ended within {RESTART_TIMEOUT_S:g} s of "
      "being killed; look at the host's load",
    ):
      await self._machine.restart()

  async def _replace_shell(self) -> None:
    """Opens a new shell; if none starts, ends every process and tries again.

    The second one reads no profile, which the policy may have changed.
    """
    try:
      await self._open_again(LOGIN)
    except MachineLost:
      await self._end_processes()
      await self._open_again(PLAIN)

  async def _open_again(self, argv: Sequence[str]) -> None:
    await self.close()
    self._terminal = await self._machine.terminal(argv)
    await self._wait_for_prompt(NEXT_PROMPT_TIMEOUT_S)


def _meaning_of_silence(output: TerminalOutput) -> tuple[Ending, float] | None:
  """Returns the ending that a silence of so many seconds would mean."""
  if output.is_unfinished:
    return Ending.UNFINISHED, PROMPT_SILENCE_S
  if output.may_be_done:
    return Ending.COMPLETED, PROMPT_SILENCE_S
  if output.may_wait_for_input:
    return Ending.WAITS_FOR_INPUT, QUESTION_SILENCE_S
  return None
