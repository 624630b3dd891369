"""Writes where every thread and every task of this process waits.

For a run that stands still: what it waits for is gone once the process is.
"""

import asyncio
import collections
import gc
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

FILE = "stacks.txt"


def write_stacks(
  path: pathlib.Path, loop: asyncio.AbstractEventLoop
) -> pathlib.Path:
  """Writes the stacks of all threads, and of all tasks of a loop, to a file.

  Threads or tasks that wait at the same place are written once, with their
  number. The loop may be of another thread, and need not run. Returns the path.
  """
  threads = (_outer_frames(frame) for frame in sys._current_frames().values())
  tasks = asyncio.all_tasks(loop)
  awaited = (_frames(task.get_coro()) for task in tasks if not task.done())
  with path.open("w", encoding="utf-8") as file:
    for kind, stacks in (("threads", threads), ("asyncio tasks", awaited)):
      texts = collections.Counter(map(_text, stacks))
      for stack, number in texts.most_common():
        file.write(f"{number} {kind} (innermost line last):\n{stack}\n")
  return path


def _text(frames: Iterable[types.FrameType]) -> str:
  return "".join(
    f"  File {frame.f_code.co_filename!r}, line {frame.f_lineno} in "
    f"{frame.f_code.co_name}\n"
    for frame in frames
  )


def _outer_frames(frame: types.FrameType | None) -> list[types.FrameType]:
  """Returns the frames of a thread, the outermost first."""
  frames = []
  while frame is not None:
    frames.append(frame)
    frame = frame.f_back
  return frames[::-1]


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
