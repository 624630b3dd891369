"""Writes a run's metrics so that they can be read again.

`metrics.jsonl` is the truth: one JSON object per line, in the order of time.
The TensorBoard files beside it are a copy of it, one TensorBoard run per stage.
This module knows no metric by name, computes none and imports no jax.

  with MetricsWriter(run_directory) as writer:
    writer.write(step, {"reward/mean": 0.5}, stage="rl")
"""

import dataclasses
import json
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import BinaryIO, Self, SupportsFloat

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import (
  append_whole,
  drop_half_line,
  reading,
  write_whole,
  writing,
)

FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
NUM_NOT_FINITE = "metrics/num_not_finite"
_RESERVED = ("stage", "step", "time_s")


@dataclasses.dataclass(frozen=True)
class Row:
  """Metrics of one step of one stage; NaN where a value was not finite."""

  stage: str
  step: int
  time_s: float  # since the epoch
  values: Mapping[str, float]


class MetricsWriter:
  """Appends rows to a run's metrics; every row is on disk when `write` returns.

  Opening a run that was killed drops the half line it may have left. Open it
  once per run: two writers of one directory would mix their lines.
  """

  def __init__(
    self,
    directory: pathlib.Path | str,
    *,
    clock: Callable[[], float] = time.time,
    copy_to: Callable[[Row], None] | None = None,
  ) -> None:
    """`copy_to` gets each row once it is written."""
    self._directory = pathlib.Path(directory)
    self._directory.mkdir(parents=True, exist_ok=True)
    self._clock, self._copy_to = clock, copy_to
    self._tensorboards: dict[str, _EventFile] = {}
    self.path = self._directory / FILE
    self.num_not_finite = 0  # values written as null by this writer
    drop_half_line(self.path)
    self._file = self._opened()

  def write(
    self, step: int, values: Mapping[str, SupportsFloat], stage: str
  ) -> None:
    """Appends one row. What is not finite becomes null, and is counted."""
    floats = {name: float(value) for name, value in values.items()}
    row = Row(stage, int(step), self._clock(), floats)
    not_finite = sum(not math.isfinite(v) for v in row.values.values())
    if not_finite:
      self.num_not_finite += not_finite
      counted = {**row.values, NUM_NOT_FINITE: float(not_finite)}
      row = dataclasses.replace(row, values=counted)
    append_whole(self.path, _to_line(row), self._file)
    with writing(self._directory / TENSORBOARD):
      self._copy(row).flush()
    if self._copy_to is not None:
      self._copy_to(row)

  def truncate_after(self, stage: str, step: int) -> None:
    """Forgets the first row of `stage` beyond `step`, and all that follow it.

    For a run that resumes from the checkpoint of that step: the rows that it
    writes from here on neither repeat nor follow rows of the lost attempt,
    whichever stage wrote those. A stage that never got further loses nothing.
    """
    rows = read_metrics(self.path)
    kept = rows[: _end_of(rows, stage, step)]
    self.close()
    write_whole(self.path, "".join(map(_to_line, kept)))
    shutil.rmtree(self._directory / TENSORBOARD, ignore_errors=True)
    self._file = self._opened()
    for row in kept:
      self._copy(row)

  def close(self) -> None:
    """Flushes and closes the files. Closing twice is fine."""
    self._file.close()
    with writing(self._directory / TENSORBOARD):
      for tensorboard in self._tensorboards.values():
        tensorboard.close()
    self._tensorboards = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  def _opened(self) -> BinaryIO:
    return self.path.open("ab", buffering=0)

  def _copy(self, row: Row) -> "_EventFile":
    """Has a row in the TensorBoard file of its stage, too."""
    file = self._tensorboard(row.stage)
    file.write(row.step, row.time_s, row.values)
    return file

  def _tensorboard(self, stage: str) -> "_EventFile":
    if stage not in self._tensorboards:
      directory = self._directory / TENSORBOARD / stage
      self._tensorboards[stage] = _EventFile(directory)
    return self._tensorboards[stage]


class _EventFile:
  """A new file of scalars in the directory of one TensorBoard run.

  Imports tensorboardX late: where torch is installed, it imports that, which
  takes seconds that readers of metrics should not pay. Its EventsWriter is
  used, not its SummaryWriter, whose thread may not have written yet when a run
  is killed.
  """

  def __init__(self, directory: pathlib.Path):
    from tensorboardX.event_file_writer import EventsWriter

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
    from tensorboardX.proto import event_pb2, summary_pb2

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


def read_metrics(path: pathlib.Path | str) -> list[Row]:
  """The rows of a `metrics.jsonl`, in the order in which they were written.

  A run may be writing meanwhile: a last line without its end is not read. Any
  other line that is no row raises `ConfigError`, which names file and line.
  """
  with reading(pathlib.Path(path)):
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]
  return [
    _from_line(line, f"{path}:{number}")
    for number, line in enumerate(lines, start=1)
  ]


def _to_line(row: Row) -> str:
  values = {
    name: value if math.isfinite(value) else None
    for name, value in row.values.items()
  }
  head = {"stage": row.stage, "step": row.step, "time_s": round(row.time_s, 3)}
  return json.dumps({**head, **values}, allow_nan=False) + "\n"


def _from_line(line: str, where: str) -> Row:
  try:
    body = json.loads(line)
    return Row(
      stage=str(body.pop("stage")),
      step=int(body.pop("step")),
      time_s=float(body.pop("time_s")),
      values=dict(
        (name, math.nan if value is None else float(value))
        for name, value in body.items()
      ),
    )
  except (
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    OverflowError,
    RecursionError,
  ) as error:
    raise ConfigError(
      f"{where} is not a row of metrics: found {line[:80]!r}, expected a JSON "
      f"object with {', '.join(_RESERVED)}. Remove the line to read the rest."
    ) from error


def _end_of(rows: list[Row], stage: str, step: int) -> int:
  """Counts the rows before the first of `stage` beyond `step`."""
  lost = (i for i, r in enumerate(rows) if r.stage == stage and r.step > step)
  return next(lost, len(rows))
