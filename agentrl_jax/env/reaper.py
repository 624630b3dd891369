"""Removes a process's containers when the process is gone, however it went.

A process that is killed cannot clean up after itself. `watch_over_this_process`
starts a small process beside it, out of reach of Ctrl-C, which looks once a
second whether its owner lives, removes what the owner left, and ends.
"""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from agentrl_jax.env.owner import current_owner, is_gone

PERIOD_S = 1.0  # between two looks at the owner

_lock = threading.Lock()
_watched: dict[str, subprocess.Popen[bytes]] = {}  # by owner


def watch_over_this_process() -> None:
  """Starts this process's reaper, once; a dead one is replaced."""
  owner = current_owner()
  with _lock:
    reaper = _watched.get(owner)
    if reaper is None or reaper.poll() is not None:
      _watched[owner] = subprocess.Popen(
        [sys.executable, "-m", __name__, owner],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # what ends its owner must not end it
      )


def main(arguments: Sequence[str]) -> None:
  """Waits for the end of the owner named, and cleans up after it."""
  (owner,) = arguments
  logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
  while not is_gone(owner):
    time.sleep(PERIOD_S)
  # Not before: it waits for a long time, and in little memory.
  from agentrl_jax.env import containers, engine

  with engine.connect() as docker:
    containers.remove_orphans(docker)


if __name__ == "__main__":
  main(sys.argv[1:])
