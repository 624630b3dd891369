"""Interface of machines, each a Linux for one episode, and of their engines."""

import abc
from collections.abc import Mapping, Sequence

from agentrl_jax.service.docker.stream import Finished, Terminal
from environments.options import MachineLimits
from environments.os_interaction.machines.files import Changes, Tree

MAX_OUTPUT_BYTES = 1 << 20  # kept of a script's output
# Root of the machine changes owners, reads everybody's files, becomes another
# user and ends others' processes; no task asks for more.
CAPABILITIES = (
  "CHOWN",
  "DAC_OVERRIDE",
  "FOWNER",
  "FSETID",
  "KILL",
  "SETGID",
  "SETUID",
)
HOME = "/root"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MachineLost(Exception):
  """The policy's own commands have ended the machine; the policy reads why.

  A machine or an engine that fails by itself raises `EnvironmentFault`.
  """


class Machine(abc.ABC):
  """A running Linux on which the policy is root."""

  @abc.abstractmethod
  async def run(self, argv: Sequence[str], *, limit_s: float) -> Finished:
    """Runs a command as root in /root, without a terminal.

    A command beyond its time limit may go on running; `restart` ends it.
    """

  async def seal(self) -> None:  # noqa: B027 - sandboxes have nothing to close
    """Closes helpers of the set-up, before the policy's first command."""

  @abc.abstractmethod
  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal of its own.

    Raises `MachineLost` if none starts on the machine as the policy left it.
    """

  @abc.abstractmethod
  async def restart(self) -> None:
    """Ends every process; files stay."""

  @abc.abstractmethod
  async def halt(self) -> None:
    """Ends every process for good; files stay readable."""

  @abc.abstractmethod
  async def read_tree(self, path: str) -> Tree:
    """Reads a path and everything below it, from outside the machine.

    Empty if there is nothing. Raises `Unreadable` beyond the `ReadBudget`.
    """

  @abc.abstractmethod
  async def read_changes(self) -> Changes:
    """Reads the difference to the image's files, from outside the machine.

    Leaves out `IGNORED_PATHS`. Raises `Unreadable` beyond the `ReadBudget`.
    """

  @abc.abstractmethod
  async def read_processes(self) -> Mapping[str, str]:
    """Reads the names of living processes, from outside, by a unique id."""

  @abc.abstractmethod
  async def apply_changes(self, changes: Changes) -> None:
    """Writes another machine's changes to this one.

    Raises `Unreadable` for changes that do not fit.
    """

  @abc.abstractmethod
  async def remove(self) -> None:
    """Ends the machine, deletes its files, and waits until it is gone."""


class MachineEngine(abc.ABC):
  """Starts machines."""

  has_images: bool = False  # False: all machines begin with the same files

  @abc.abstractmethod
  async def start(
    self, image: str, limits: MachineLimits | None = None
  ) -> Machine:
    """Starts a fresh machine; cancellation leaves none behind.

    `image` is AgentBench's name of it (default, packages or ubuntu), or of an
    engine that `has_images` any other. `limits` replace the engine's own.
    """

  @abc.abstractmethod
  async def close(self) -> None:
    """Frees the engine's own resources; it must not be used afterwards."""
