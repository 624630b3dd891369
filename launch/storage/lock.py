"""Locks on folders that end with their process, and a look at them.

`is_held` shares a free lock for an instant, so two looks do not see each other.
`held` tries for a moment before it gives up: a look must not keep a run from
starting.
"""

import fcntl
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl_jax.errors import RunInUse
from agentrl_jax.files import writing

_LOOK_S = 1.0  # longer than any look
_POLL_S = 0.02


@contextmanager
def held(path: pathlib.Path, sentence: str) -> Iterator[None]:
  """Holds the file's lock. Raises `RunInUse(sentence)` if another does."""
  deadline = time.monotonic() + _LOOK_S
  with writing(path):
    file = path.open("w")
  with file:
    while True:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError as error:
        if time.monotonic() > deadline:
          raise RunInUse(sentence) from error
        time.sleep(_POLL_S)
    yield


def is_held(path: pathlib.Path) -> bool:
  """True if a process holds the file's lock; it may be another user's."""
  try:
    with path.open("r") as file:  # which a shared lock can be taken of
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except FileNotFoundError:
    return False
  return False
