"""Record of faults and alarms of a run: `faults.jsonl` in its folder.

A resumed run removes the metrics of updates that are not in its checkpoint, and
counts from 0 again. This file is only ever appended to, so it keeps the faults
of every start. Process 0 of the learner writes it, and sees faults as counters:
faults between its last update and its own loss are not in it.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.files import append_whole, drop_half_line, reading

FILE = "faults.jsonl"
START = "start"  # of the learner; all but a run's first follow an end
SERVER = "server"  # a rollout server that was lost
EPISODE = "episode"  # an episode that a fault ended
ALARM = "alarm"  # of `train.collapse.alarm`
NOTE = "note"  # its sentence that is no alarm
LOST_SERVERS = "rollouts/lost"
_FAULT = "rollout/fault/"  # then the fault's class, and the task


@dataclasses.dataclass(frozen=True)
class Fault:
  """`count` faults of a kind, or an alarm, seen at update `version`."""

  time_s: float  # since 1970
  version: int
  kind: str  # START, SERVER, EPISODE, ALARM or NOTE
  count: int = 1
  # Of episodes the fault's class and the task, of alarms the sentence.
  what: str = ""


class FaultLog:
  """Appends to the record, from counters that begin at 0 with each start."""

  def __init__(
    self, path: pathlib.Path, *, clock: Callable[[], float] = time.time
  ) -> None:
    self._path, self._clock = path, clock
    self._counted: dict[str, int] = {}

  def started(self, version: int) -> None:
    """Records that the learner has started, and goes on from `version`.

    Called as early as possible: a start may end before it makes an update.
    """
    self._add(Fault(self._clock(), version, START))

  def update(self, version: int, metrics: Mapping[str, float]) -> None:
    """Records the faults that were counted since the last call."""
    for name, value in metrics.items():
      is_server = name == LOST_SERVERS
      if not is_server and not name.startswith(_FAULT):
        continue
      new = int(value) - self._counted.get(name, 0)
      self._counted[name] = int(value)
      if new > 0:
        what = "" if is_server else name.removeprefix(_FAULT)
        kind = SERVER if is_server else EPISODE
        self._add(Fault(self._clock(), version, kind, new, what))

  def alarm(self, version: int, sentence: str, *, is_note: bool) -> None:
    """Records an alarm that has begun, or a note."""
    kind = NOTE if is_note else ALARM
    self._add(Fault(self._clock(), version, kind, what=sentence))

  def _add(self, fault: Fault) -> None:
    drop_half_line(self._path)
    append_whole(self._path, json.dumps(dataclasses.asdict(fault)) + "\n")


def read_faults(path: pathlib.Path) -> list[Fault]:
  """Returns all faults in order, without the run's first start.

  Empty for a run that has no such file.
  """
  if not path.exists():
    return []
  with reading(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [Fault(**json.loads(line)) for line in lines if line.endswith("\n")]
  return found[1:] if found and found[0].kind == START else found


def split_alarms(faults: Sequence[Fault]) -> tuple[list[Fault], list[Fault]]:
  """Returns the alarms and notes, and all else."""
  alarms = [fault for fault in faults if fault.kind in (ALARM, NOTE)]
  return alarms, [fault for fault in faults if fault not in alarms]
