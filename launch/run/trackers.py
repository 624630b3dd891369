"""Copies a run's metrics to Weights & Biases, while it runs.

`metrics.jsonl` stays the truth. Rows are sent by a thread, and a tracker that
fails costs rows of the copy, never an update. A run that resumes goes on with
the same run of the tracker, and sends again what it computes again.
"""

import contextlib
import importlib
import json
import logging
import math
import os
import pathlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import ml_collections

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading, write_whole
from agentrl_jax.train.config.checks import require_one_of
from launch.reports.metrics_file import Row

FILE = "trackers.json"  # ids in the run's folder, by the tracker's name
PROJECT = "agentrl_jax"  # unless WANDB_PROJECT is set
_MOST_ROWS = 10_000  # that wait; beyond, rows are dropped
_CLOSE_S = 60.0  # to send what waits, at the end

_log = logging.getLogger(__name__)


class Tracker(Protocol):
  """One run at a tracker."""

  id: str

  def send(self, row: Row) -> None:
    """Sends the finite values of a row."""

  def close(self, is_finished: bool) -> None:
    """Waits until all is sent, and ends the run there, finished or not."""


class WandbTracker:
  """A run of Weights & Biases; its own variables say where and as whom."""

  def __init__(
    self, folder: pathlib.Path, config: ml_collections.ConfigDict, id: str
  ):
    wandb = importlib.import_module("wandb")
    self.id = id or uuid.uuid4().hex[:12]
    self._run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", PROJECT),
      name=config.name,
      id=self.id,
      resume="allow",
      dir=folder,
      config=config.to_dict(),
      settings=wandb.Settings(console="off", silent=True),
    )
    self._stages: set[str] = set()

  def send(self, row: Row) -> None:
    """See `Tracker.send`. Each stage counts steps of its own."""
    step = f"{row.stage}/step"
    if row.stage not in self._stages:
      self._stages.add(row.stage)
      self._run.define_metric(f"{row.stage}/*", step_metric=step)
    values = {f"{row.stage}/{k}": v for k, v in _finite(row.values).items()}
    self._run.log({**values, step: row.step})

  def close(self, is_finished: bool) -> None:
    """See `Tracker.close`."""
    self._run.finish(exit_code=0 if is_finished else 1)


TRACKERS: Mapping[str, Callable[..., Tracker]] = {"wandb": WandbTracker}


@contextlib.contextmanager
def tracked(
  names: Sequence[str], folder: pathlib.Path, config: ml_collections.ConfigDict
) -> Iterator[Callable[[Row], None] | None]:
  """Yields a function that takes rows to send; None if there is no tracker.

  A run that is left by an exception, as one that is stopped, is not finished
  there. Raises `ConfigError` for a name that is unknown, a package that is
  missing, and a tracker that refuses the run.
  """
  if not names:
    yield None
    return
  path = folder / FILE
  with reading(path):
    ids = dict(json.loads(path.read_text())) if path.exists() else {}
  trackers = {
    name: _opened(name, folder, config, ids.get(name, "")) for name in names
  }
  ids |= {name: tracker.id for name, tracker in trackers.items()}
  write_whole(path, json.dumps(ids))
  copier = _Copier(trackers)
  try:
    yield copier.put
  except BaseException:
    copier.close(is_finished=False)
    raise
  copier.close(is_finished=True)


def _opened(
  name: str, folder: pathlib.Path, config: ml_collections.ConfigDict, id: str
) -> Tracker:
  require_one_of("report.trackers", name, TRACKERS)
  try:
    return TRACKERS[name](folder, config, id)
  except ImportError as error:
    raise ConfigError(
      f"report.trackers names {name}, which is not installed ({error}): pip "
      f"install {name}, or leave it out"
    ) from error
  except Exception as error:
    raise ConfigError(
      f"report.trackers: {name} takes no run: {error}. Set its variables, or "
      "leave it out"
    ) from error


class _Copier:
  """Sends rows from a thread of its own."""

  def __init__(self, trackers: Mapping[str, Tracker]):
    self._trackers = trackers
    self._rows: queue.Queue[Row | None] = queue.Queue(_MOST_ROWS)
    self._num_lost = dict.fromkeys(trackers, 0)
    self._is_finished = False  # the run, once no row comes any more
    self._thread = threading.Thread(
      target=self._run, name="trackers", daemon=True
    )
    self._thread.start()

  def put(self, row: Row) -> None:
    """Takes a row, and does not wait."""
    try:
      self._rows.put_nowait(row)
    except queue.Full:
      for name in self._trackers:
        self._lose(name, "it is too slow")

  def close(self, is_finished: bool) -> None:
    """Sends what waits, for a minute at most."""
    self._is_finished = is_finished
    given_up_at = time.monotonic() + _CLOSE_S
    with contextlib.suppress(queue.Full):
      self._rows.put(None, timeout=_CLOSE_S)
    self._thread.join(max(0.0, given_up_at - time.monotonic()))
    if self._thread.is_alive():
      _log.warning(
        "%s has not taken all metrics within %g s; metrics.jsonl has them",
        " or ".join(self._trackers),
        _CLOSE_S,
      )
    for name, number in self._num_lost.items():
      if number:
        _log.warning(
          "%d rows of metrics were not sent to %s; metrics.jsonl has them",
          number,
          name,
        )

  def _run(self) -> None:
    while (row := self._rows.get()) is not None:
      for name, tracker in self._trackers.items():
        try:
          tracker.send(row)
        except Exception as error:  # noqa: BLE001 - a copy must not end a run
          self._lose(name, repr(error))
    for name, tracker in self._trackers.items():
      try:
        tracker.close(self._is_finished)
      except Exception as error:  # noqa: BLE001 - see above
        _log.warning("%s has not ended its run: %r", name, error)

  def _lose(self, name: str, why: str) -> None:
    self._num_lost[name] += 1
    if self._num_lost[name] == 1:
      _log.warning(
        "metrics are not sent to %s: %s. Further ones are counted", name, why
      )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
  return {name: v for name, v in values.items() if math.isfinite(v)}
