"""Writes where every thread and every task of this process waits.

For a run that stands still: what it waits for is gone once the process is.
"""

import asyncio
import collections
import faulthandler
import gc
import pathlib
from collections.abc import Iterator
from typing import Any

FILE = "stacks.txt"


def write_stacks(
  path: pathlib.Path, loop: asyncio.AbstractEventLoop
) -> pathlib.Path:
  """Writes the stacks of all threads, and of all tasks of a loop, to a file.

  Tasks that wait at the same place are written once, with their number. The
  loop may be of another thread, and need not run. Returns the path.
  """
  with path.open("w", encoding="utf-8") as file:
    faulthandler.dump_traceback(file, all_threads=True)
    tasks = collections.Counter(
      _stack(task) for task in asyncio.all_tasks(loop) if not task.done()
    )
    for stack, number in tasks.most_common():
      file.write(f"\n{number} asyncio tasks (innermost line last):\n{stack}")
  return path


def _stack(task: asyncio.Task[Any]) -> str:
  return "".join(
    f"  File {frame.f_code.co_filename!r}, line {frame.f_lineno} in "
    f"{frame.f_code.co_name}\n"
    for frame in _frames(task.get_coro())
  )


def _frames(awaited: Any) -> Iterator[Any]:
  """Yields the frame of a coroutine, and those of what it awaits."""
  while awaited is not None:
    for kind in ("cr", "ag", "gi"):
      frame = getattr(awaited, f"{kind}_frame", None)
      if frame is not None:
        yield frame
        inner = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
        awaited = getattr(awaited, inner)
        break
    else:  # the step of an asynchronous generator, which does not name it
      referents = gc.get_referents(awaited)
      awaited = next((x for x in referents if hasattr(x, "ag_frame")), None)
