"""TensorBoard's event files. A module of its own, since it is slow to import.

Where torch is installed, tensorboardX imports it, which takes seconds that only
what writes such files should pay.
"""

import math
import pathlib
from collections.abc import Mapping

# tensorboardX ships no type hints. Its EventsWriter is used, not its
# SummaryWriter, whose thread may not have written yet when a run is killed.
from tensorboardX.event_file_writer import (  # type: ignore[import-untyped]
  EventsWriter,
)
from tensorboardX.proto import (  # type: ignore[import-untyped]
  event_pb2,
  summary_pb2,
)


class EventFile:
  """A new file of scalars in the directory of one TensorBoard run."""

  def __init__(self, directory: pathlib.Path):
    directory.mkdir(parents=True, exist_ok=True)
    # Names go by the second: what was written before must not be hit.
    suffix = f".{len(list(directory.iterdir()))}"
    self._writer = EventsWriter(
      str(directory / "events"), filename_suffix=suffix
    )

  def write(
    self, step: int, time_s: float, values: Mapping[str, float]
  ) -> None:
    """Appends those of the values that are finite."""
    scalars = [
      summary_pb2.Summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
      if math.isfinite(value)
    ]
    summary = summary_pb2.Summary(value=scalars)
    self._writer.write_event(
      event_pb2.Event(step=step, wall_time=time_s, summary=summary)
    )

  def flush(self) -> None:
    """Makes what was written safe from a kill."""
    self._writer.flush()

  def close(self) -> None:
    """Flushes and closes the file."""
    self._writer.close()
