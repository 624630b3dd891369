"""Removes a process's containers when the process is gone, however it went.

A process that is killed cannot clean up after itself. `watch_over_this_process`
starts a small process beside it, out of reach of Ctrl-C, which looks once a
second whether its owner lives, removes what the owner left, and ends.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from agentrl_jax.env.owner import current_owner, is_gone

PERIOD_S = 1.0  # between two looks at the owner

START_S = 30.0  # for the small process to come to be
_lock = threading.Lock()
_watched: set[str] = set()  # owners; a fork of a process is another one


def watch_over_this_process() -> None:
  """Starts this process's reaper, once."""
  owner = current_owner()
  with _lock:
    if owner in _watched:
      return
    subprocess.run(
      [sys.executable, "-m", __name__, owner],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      start_new_session=True,  # what ends its owner must not end it
      timeout=START_S,
      check=True,
    )
    _watched.add(owner)


def main(arguments: Sequence[str]) -> None:
  """Waits for the end of the owner named, and cleans up after it."""
  (owner,) = arguments
  if os.fork():
    return  # the other one is nobody's child, and nobody waits for its end
  logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
  while not is_gone(owner):
    time.sleep(PERIOD_S)
  # Not before: it waits for a long time, and in little memory.
  from agentrl_jax.env import containers, engine

  with engine.connect() as docker:
    containers.remove_orphans(docker)


if __name__ == "__main__":
  main(sys.argv[1:])
