"""What an episode is played on: a machine of its own, and who makes them.

What the policy does to its machine is the policy's doing: `MachineLost` says
what that was. Only an engine that breaks by itself is an `EnvironmentFault`.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence

from agentrl_jax.env.session_container_stream import Finished, Terminal
from agentrl_jax.errors import ConfigError
from environments.os_interaction.machines.files import Changes, Tree

MAX_BYTES = 1 << 20  # of a script's output that are kept
# Root of the machine needs to give files away, to read everybody's, to become
# another user and to end others' processes; nothing else was ever asked for.
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
  """The machine was stopped for what the policy did with it; says what."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """How much a machine may use. Memory and processors are AgentBench's."""

  memory_mb: int = 1024
  cpus: float = 2.0
  pids: int = 256
  disk_mb: int = 512  # written, beyond what the image holds
  script_s: float = 30.0  # for init, example and check scripts
  network: bool = False

  def __post_init__(self) -> None:
    for name in ("memory_mb", "cpus", "pids", "disk_mb", "script_s"):
      if getattr(self, name) <= 0:
        raise ConfigError(f"{name}={getattr(self, name)} must be above 0")


class Machine(abc.ABC):
  """A running Linux whose root the policy is."""

  @abc.abstractmethod
  async def run(self, argv: Sequence[str], *, limit_s: float) -> Finished:
    """Runs a command as root in /root, without a terminal.

    It may still run when its time is over; `restart` ends it.
    """

  async def seal(self) -> None:  # noqa: B027 - some have nothing to close
    """Ends what was kept at hand for setting up; the policy's turn is next."""

  @abc.abstractmethod
  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal of its own."""

  @abc.abstractmethod
  async def restart(self) -> None:
    """Ends every process; files stay."""

  @abc.abstractmethod
  async def end(self) -> None:
    """Ends every process for good; files can still be looked at."""

  @abc.abstractmethod
  async def look(self, path: str) -> Tree:
    """Reads what is at a path and below it, from outside the machine.

    Empty if there is nothing. Raises `Unreadable` beyond the bounds of `view`.
    """

  @abc.abstractmethod
  async def changes(self) -> Changes:
    """Reads how its files differ from the image's, from outside.

    What packages leave behind (`UNREAD`) is left out. Raises as `look`.
    """

  @abc.abstractmethod
  async def processes(self) -> Mapping[str, str]:
    """The names of living processes, from outside, by a number for life."""

  @abc.abstractmethod
  async def load(self, changes: Changes) -> None:
    """Makes its files differ from the image's as another machine's do.

    Raises `Unreadable` for changes that do not fit.
    """

  @abc.abstractmethod
  async def remove(self) -> None:
    """Ends it, with all that is on it; waits until it is gone."""


class Engine(abc.ABC):
  """A maker of machines."""

  @abc.abstractmethod
  async def start(self, image: str) -> Machine:
    """A fresh machine; if cancelled, there is none.

    `image` is AgentBench's word: default, packages or ubuntu.
    """

  @abc.abstractmethod
  async def close(self) -> None:
    """Frees what the engine itself holds; it may not be used again."""
