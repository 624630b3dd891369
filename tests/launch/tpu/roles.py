"""The processes of a rehearsed run that can be killed."""

import dataclasses
import os
import pathlib

from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.orphans import OWNER_LABEL


@dataclasses.dataclass(frozen=True)
class Role:
  """A process that can be killed: its name, and the file with its number.

  A host of workers is the supervised process, and has a child per worker; one
  of them owns a container.
  """

  name: str
  kind: str
  child: pathlib.Path  # written by the role's supervisor

  def pid(self) -> int:
    """Returns the number of the process, 0 while there is none."""
    try:
      pid = int((self.child.read_text().split() or ["0"])[0])
      if pid and self.kind in ("worker", "container"):
        pid = _below(pid, self.kind)
      if pid:
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
      return 0
    return pid


def _below(host: int, kind: str) -> int:
  listed = pathlib.Path(f"/proc/{host}/task/{host}/children").read_text()
  workers = [int(word) for word in listed.split()]
  if kind == "worker":
    return next(iter(workers), 0)
  owned = [pid for owner, pid in containers().values() if owner in workers]
  return next(iter(owned), 0)


def containers() -> dict[str, tuple[int, int]]:
  """Returns workers' containers by name: the owner's pid, and their own."""
  with engines.connect() as engine:
    found = engine.containers.list(
      all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
    )
  return {
    container.name: (
      int(container.labels[OWNER_LABEL].split("/")[1]),
      int(container.attrs["State"]["Pid"]),
    )
    for container in found
  }
