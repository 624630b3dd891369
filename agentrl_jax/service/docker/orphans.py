"""Removes containers whose owner, a process of this host, has ended.

Each container has a label with the process that must remove it. A killed
process cannot clean up, so `watch_over_this_process` starts a small process,
out of reach of Ctrl-C, which checks once a second whether the owner lives,
removes the containers that the owner left, and ends. After a loss of power,
this command removes the containers of all ended owners:

  python -m agentrl_jax.service.docker.orphans
"""

import logging
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl_jax import logs
from agentrl_jax.errors import EnvironmentFault

if TYPE_CHECKING:
  # The watching process imports it late, since it waits for a long time and
  # should use little memory.
  import docker

_log = logging.getLogger(__name__)
_TEXT = "%(levelname)s %(message)s"

OWNER_LABEL = "agentrl_jax.owner"
PERIOD_S = 1.0  # between two checks of the owner

START_S = 30.0  # timeout of the watching process's start
_lock = threading.Lock()
_watched: set[str] = set()  # owners: a forked process is another owner


def current_owner() -> str:
  """Names this process, as host/process id/start.

  The host and the start distinguish it from another machine's process, and from
  a later process with the same id.
  """
  pid = os.getpid()
  return f"{socket.gethostname()}/{pid}/{_start_of(pid)}"


def is_gone(owner: str) -> bool:
  """Returns whether a process of this host ended; False for other hosts."""
  host, pid, start = owner.split("/", 2)
  return host == socket.gethostname() and _start_of(int(pid)) != start


def remove_orphans(engine: "docker.DockerClient") -> list[str]:
  """Removes containers whose owner is gone; returns their names."""
  containers = engine.containers.list(
    all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
  )
  orphans = [
    str(container.name)
    for container in containers
    if is_gone(container.labels[OWNER_LABEL])
  ]
  for name in orphans:
    remove_or_log(engine, name)
  return orphans


def remove_or_log(engine: "docker.DockerClient", name: str) -> None:
  """Removes a container; logs a failure, which must not end the run."""
  from agentrl_jax.service.docker.engine import remove_container

  try:
    remove_container(engine, name)
  except EnvironmentFault as fault:
    _log.error("%s", fault)


def watch_over_this_process() -> None:
  """Starts the process that removes this one's containers."""
  owner = current_owner()
  with _lock:
    if owner in _watched:
      return
    subprocess.run(
      [sys.executable, "-m", __name__, owner],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      start_new_session=True,  # a signal to the owner must not end it
      timeout=START_S,
      check=True,
    )
    _watched.add(owner)


def _start_of(pid: int) -> str | None:
  """Returns the time the process was started, or None if there is none."""
  if pathlib.Path("/proc/self/stat").exists():
    try:
      stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
      boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    except (FileNotFoundError, ProcessLookupError):
      return None
    ticks = stat.rpartition(")")[2].split()[19]  # since the boot
    return f"{boot.strip()}+{ticks}"
  answer = subprocess.run(
    ["ps", "-o", "lstart=", "-p", str(pid)],
    capture_output=True,
    text=True,
    timeout=10,
  )
  return answer.stdout.strip() or None


def _remove_all() -> list[str]:
  from agentrl_jax.service.docker import engine

  with engine.connect() as docker:
    return remove_orphans(docker)


def _watch(owner: str) -> None:
  """Detaches, waits for the end of the owner, and removes its containers."""
  if os.fork():
    return  # the child is detached; no process waits for its end
  while not is_gone(owner):
    time.sleep(PERIOD_S)
  _remove_all()


def main(arguments: Sequence[str]) -> None:
  """Removes all orphans, or those of the named owner once it has ended."""
  if arguments:
    logs.set_up(logging.WARNING, text=_TEXT)
    _watch(*arguments)
    return
  logs.set_up(text=_TEXT)
  removed = _remove_all()
  _log.info("removed %d: %s", len(removed), ", ".join(removed) or "none")


if __name__ == "__main__":
  main(sys.argv[1:])
