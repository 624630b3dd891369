"""Joins several learner processes into one run, and parts them again.

  AGENTRL_COORDINATOR=host:port AGENTRL_NUM_PROCESSES=4 AGENTRL_PROCESS_ID=0 \\
    python -m launch.train --config=...

Every process runs the same compiled programs, joined by `jax.distributed`.
Process 0 leads: it alone plays, decides and writes files, and shares with the
others what they need to keep step. With AGENTRL_NUM_PROCESSES=auto the machines
are detected (Cloud TPU, Slurm); without the variables there is one process.

A lost process ends all of them, with a sentence: the programs of the others
would wait for it for ever. The launcher restarts all of them, and the run
resumes from its checkpoint.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from agentrl_jax.errors import AgentRLError, ConfigError, DeadlineExceeded
from configs.base import ProcessLimits
from launch.processes.link import LeadersLink, Link, LinkAddress, follow

COORDINATOR = "AGENTRL_COORDINATOR"
NUM_PROCESSES = "AGENTRL_NUM_PROCESSES"
PROCESS_ID = "AGENTRL_PROCESS_ID"
_ADDRESS_BYTES = 512
_LEAST_CHUNK, _MOST_CHUNK = 1 << 12, 1 << 26  # bytes on each device at once


class Processes:
  """The learner's processes, seen from one of them."""

  def __init__(
    self, index: int = 0, count: int = 1, link: Link | None = None
  ) -> None:
    self.index, self.count = index, count
    self._link = link

  @property
  def leads(self) -> bool:
    """True for the process that plays, decides and writes files."""
    return self.index == 0

  def share(self, value: bytes = b"", *, what: str) -> bytes:
    """Returns process 0's value in every process; all call it in the same
    order.

    The others wait until process 0 calls it too, `processes.wait_timeout_s` at
    most. Raises `SystemExit` in them if process 0 has left instead.
    """
    if self._link is None:
      return value
    return self._link.share(value, what)

  def broadcast(self, value: bytes = b"", *, what: str) -> bytes:
    """Does the same for long values, by way of the devices.

    Over the link process 0 would send a batch once to each of the others. The
    devices' network passes it on: process 0 sends it twice at most, however
    many there are.
    """
    if self._link is None:
      return value
    size = int(self._link.share(str(len(value)).encode(), what))
    return _broadcast(value, size)

  def share_json(self, value: Any = None, *, what: str) -> Any:
    """Does the same for JSON values."""
    return json.loads(self.share(json.dumps(value).encode(), what=what))

  def forward(self, signal_number: int) -> None:
    """Reports a signal to process 0, which decides when to stop."""
    if self._link is not None and not self.leads:
      self._link.forward(signal_number)

  def leave(self, status: int) -> None:
    """Parts from the others, who leave too or are told of it."""
    if self._link is not None:
      self._link.leave(status)
      jax.distributed.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def joined(limits: ProcessLimits) -> Iterator[Processes]:
  """Joins the processes that the environment variables name.

  Comes before any computation. A failure is reported to the others and ends
  this process at once: jax's own shutdown would wait for lost processes.
  """
  processes = _join(limits)
  if processes.count == 1:
    yield processes
    return
  try:
    yield processes
  except SystemExit as left:
    if isinstance(left.code, str):
      _fail(processes, left)
    processes.leave(int(left.code or 0))
    raise
  except BaseException as error:  # noqa: BLE001 - it ends the process
    _fail(processes, error)
  else:
    processes.leave(0)


def _join(limits: ProcessLimits) -> Processes:
  found = _read(os.environ)
  if found is None:
    return Processes()
  # Its handler of SIGTERM would stand in the way of `interrupts`.
  jax.config.update(  # type: ignore[no-untyped-call]
    "jax_enable_preemption_service", False
  )
  try:
    jax.distributed.initialize(
      **found,
      initialization_timeout=int(limits.join_timeout_s),
      heartbeat_timeout_seconds=int(limits.heartbeat_timeout_s),
      shutdown_timeout_seconds=int(limits.join_timeout_s),
    )
  except (RuntimeError, ValueError) as error:
    raise DeadlineExceeded(
      f"this process could not join the others within processes.join_timeout_s="
      f"{limits.join_timeout_s:g}: {error}. Look at: whether all of them run, "
      f"and "
      f"{COORDINATOR}={os.environ.get(COORDINATOR, '')!r}, {NUM_PROCESSES}="
      f"{os.environ.get(NUM_PROCESSES)!r}, {PROCESS_ID}="
      f"{os.environ.get(PROCESS_ID, '')!r} in each"
    ) from error
  index, count = jax.process_index(), jax.process_count()
  if count == 1:
    return Processes()
  return Processes(index, count, _connect(index, count, limits))


def _read(environment: Mapping[str, str]) -> dict[str, Any] | None:
  """Returns arguments of `jax.distributed.initialize`; None for one process."""
  number = environment.get(NUM_PROCESSES, "")
  if not number:
    return None
  if number == "auto":
    return {}
  names = (COORDINATOR, PROCESS_ID)
  missing = [name for name in names if not environment.get(name)]
  if missing:
    raise ConfigError(
      f"{NUM_PROCESSES}={number} is set and {' and '.join(missing)} "
      f"{'is' if len(missing) == 1 else 'are'} not: set all three, or "
      f"{NUM_PROCESSES}=auto where the machines tell"
    )
  try:
    count, index = int(number), int(environment[PROCESS_ID])
  except ValueError as error:
    raise ConfigError(
      f"{NUM_PROCESSES}={number!r} and {PROCESS_ID}="
      f"{environment[PROCESS_ID]!r} must be whole numbers"
    ) from error
  if not 0 <= index < count:
    raise ConfigError(
      f"{PROCESS_ID}={index} must be from 0 to {count - 1}, since "
      f"{NUM_PROCESSES}={count}"
    )
  if count == 1:
    return None
  return {
    "coordinator_address": environment[COORDINATOR],
    "num_processes": count,
    "process_id": index,
    "cluster_detection_method": "deactivate",
  }


def _connect(index: int, count: int, limits: ProcessLimits) -> Link:
  if index == 0:
    link = LeadersLink(
      count, _own_host(), limits.join_timeout_s, limits.wait_timeout_s
    )
    _broadcast(link.address.to_bytes(), _ADDRESS_BYTES)
    link.accept()
    return link
  address = LinkAddress.from_bytes(_broadcast(b"", _ADDRESS_BYTES))
  return follow(address, index, limits.join_timeout_s, limits.wait_timeout_s)


def _broadcast(value: bytes, size: int) -> bytes:
  """Broadcasts process 0's `size` bytes by way of the devices.

  Chunks have a power of two of bytes, so that few programs compile.
  """
  needed = 1 << max(size - 1, 0).bit_length()
  chunk = min(max(needed, _LEAST_CHUNK), _MOST_CHUNK)
  received = []
  for start in range(0, size, chunk):
    part = value[start : start + chunk]
    row = np.zeros(chunk, np.uint8)
    row[: len(part)] = np.frombuffer(part, np.uint8)
    whole = np.asarray(multihost_utils.broadcast_one_to_all(row))
    received.append(whole[: size - start].tobytes())
  return b"".join(received)


def _own_host() -> str:
  """Returns the address at which the others reach this machine."""
  named = os.environ.get(COORDINATOR, "").rpartition(":")[0]
  return named or socket.gethostbyname(socket.gethostname())


def _fail(processes: Processes, error: BaseException) -> None:
  """Reports an error here and to the others, and ends the process."""
  told = isinstance(error, AgentRLError)
  if isinstance(error, SystemExit):
    text = str(error.code)
  else:
    text = f"{type(error).__name__}: {error}"
  assert processes._link is not None
  processes._link.wait_for_loss()  # of a peer: then that was the cause
  if not told and not isinstance(error, SystemExit):
    traceback.print_exception(error)
  else:
    sys.stderr.write(text + "\n")
  processes._link.fail(text.partition("\n")[0])
