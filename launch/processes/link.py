"""TCP connections between learner process 0 and the others.

- Process 0 sends what it shares, in order; the others send their signals.
- A connection that breaks before its farewell means that a process is lost.
  This is noticed at once, whatever the main threads wait for. Then nothing can
  be saved or closed in order: this process prints what happened and ends.
"""

import contextlib
import dataclasses
import hmac
import json
import os
import queue
import secrets
import signal
import socket
import struct
import sys
import threading
from typing import NoReturn, Self

from agentrl_jax.errors import DeadlineExceeded

LOST = 70  # exit status of a process that lost another
_HEADER = struct.Struct("<cQ")  # kind, bytes that follow
_SHARE, _SIGNAL, _LEAVE, _FAIL = b"S", b"I", b"L", b"F"
_HELLO_BYTES = 64  # the secret, a blank, the caller's index
_SETTLE_S = 2.0  # until a loss elsewhere is known here


@dataclasses.dataclass(frozen=True)
class LinkAddress:
  """The address of process 0, and the secret that admits a caller."""

  host: str
  port: int
  secret: str

  def to_bytes(self) -> bytes:
    """Encodes the address as a line of JSON."""
    return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

  @classmethod
  def from_bytes(cls, value: bytes) -> Self:
    """Inverts `to_bytes`; bytes after the line are padding."""
    return cls(**json.loads(value.partition(b"\n")[0]))


class _Wire:
  """One connection: complete messages, sent by any thread, read by one."""

  def __init__(
    self, connection: socket.socket, peer: int, wait_timeout_s: float
  ):
    self.peer, self.has_left = peer, False
    self._socket, self._lock = connection, threading.Lock()
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds, fraction = divmod(wait_timeout_s, 1)
    deadline = struct.pack("ll", int(seconds), int(fraction * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)

  def send(self, kind: bytes, value: bytes = b"") -> None:
    with self._lock:
      self._socket.sendall(_HEADER.pack(kind, len(value)) + value)

  def read(self) -> tuple[bytes, bytes]:
    """Waits for a message. Raises `OSError` if the connection is gone."""
    kind, size = _HEADER.unpack(self._read(_HEADER.size))
    return kind, self._read(size)

  def _read(self, size: int) -> bytes:
    parts = []
    while size:
      part = self._socket.recv(min(size, 1 << 20))
      if not part:
        raise ConnectionResetError("the connection was closed")
      parts.append(part)
      size -= len(part)
    return b"".join(parts)


class Link:
  """Connections: to all other processes from process 0, else to process 0."""

  def __init__(self, index: int, wait_timeout_s: float) -> None:
    self._index, self._wait_s = index, wait_timeout_s
    self._wires: list[_Wire] = []
    self._shared: queue.Queue[tuple[bytes, bytes]] = queue.Queue()
    self._lost = threading.Event()

  def share(self, value: bytes, what: str) -> bytes:
    """See `Processes.share`."""
    if self._index == 0:
      for wire in self._wires:
        try:
          wire.send(_SHARE, value)
        except OSError as error:
          raise DeadlineExceeded(
            f"learner process {wire.peer} did not take {what} within "
            f"processes.wait_timeout_s={self._wait_s:g} s: {error}; look at "
            f"its log"
          ) from error
      return value
    try:
      kind, value = self._shared.get(timeout=self._wait_s)
    except queue.Empty as error:
      raise DeadlineExceeded(
        f"learner process {self._index} waited processes.wait_timeout_s="
        f"{self._wait_s:g} s for process 0 to share {what}; look at: the log "
        "of process 0, which runs and does not go on"
      ) from error
    if kind == _LEAVE:
      raise SystemExit(int(value))
    return value

  def forward(self, number: int) -> None:
    """Forwards a signal to process 0, if it is there."""
    with contextlib.suppress(OSError):
      self._wires[0].send(_SIGNAL, str(number).encode())

  def leave(self, status: int) -> None:
    """Says farewell, so that the end of the connection is no loss."""
    for wire in self._wires:
      with contextlib.suppress(OSError):
        wire.send(_LEAVE, str(status).encode())

  def wait_for_loss(self) -> None:
    """Gives the loss of another process time to be noticed."""
    self._lost.wait(_SETTLE_S)

  def fail(self, sentence: str) -> NoReturn:
    """Tells the others why this process fails, and ends it."""
    for wire in self._wires:
      with contextlib.suppress(OSError):
        wire.send(_FAIL, sentence.encode())
    _end(1)

  def add(self, wire: _Wire) -> None:
    """Reads a wire from now on, in a thread of its own."""
    self._wires.append(wire)
    threading.Thread(
      target=self._listen, args=(wire,), name=f"link-{wire.peer}", daemon=True
    ).start()

  def _listen(self, wire: _Wire) -> None:
    while True:
      try:
        kind, value = wire.read()
      except OSError as error:
        if wire.has_left:
          return
        self._end_all(
          f"learner process {wire.peer} was lost ({error}); process "
          f"{self._index} ends too, since no program can go on without it. "
          "Look at the end of its log, and start all processes again: the run "
          "goes on from its newest checkpoint"
        )
      self._receive(wire, kind, value)

  def _receive(self, wire: _Wire, kind: bytes, value: bytes) -> None:
    if kind == _SIGNAL:
      # As if this process had got it; Python calls the main thread's handler.
      os.kill(os.getpid(), signal.Signals(int(value)))
      return
    wire.has_left = kind in (_LEAVE, _FAIL)
    if kind == _FAIL:
      self._end_all(f"learner process {wire.peer} failed: {value.decode()}")
    self._shared.put((kind, value))

  def _end_all(self, sentence: str) -> NoReturn:
    self._lost.set()
    sys.stderr.write(sentence + "\n")
    for wire in self._wires:
      with contextlib.suppress(OSError):
        wire.send(_FAIL, sentence.encode())
    _end(LOST)


class LeadersLink(Link):
  """Process 0's side: listens for the others, and accepts them."""

  def __init__(
    self, count: int, host: str, join_timeout_s: float, wait_timeout_s: float
  ):
    super().__init__(0, wait_timeout_s)
    self._count, self._join_s = count, join_timeout_s
    self._server = socket.create_server(
      ("", 0), family=socket.AF_INET, backlog=count
    )
    port = self._server.getsockname()[1]
    self.address = LinkAddress(host, port, secrets.token_hex(16))

  def accept(self) -> None:
    """Waits until all others have connected, `join_timeout_s` at most each."""
    with self._server:
      self._server.settimeout(self._join_s)
      missing = set(range(1, self._count))
      while missing:
        try:
          connection, _ = self._server.accept()
          connection.settimeout(self._join_s)
          hello = connection.recv(_HELLO_BYTES, socket.MSG_WAITALL)
        except TimeoutError as error:
          raise DeadlineExceeded(
            f"learner process 0 waited {self._join_s:g} s for processes "
            f"{sorted(missing)} to call at {self.address.host}:"
            f"{self.address.port}; look at: their logs, and whether a firewall "
            "lets them through"
          ) from error
        except OSError:
          continue  # no process of ours
        secret, _, index = hello.partition(b" ")
        if not hmac.compare_digest(secret, self.address.secret.encode()):
          connection.close()
          continue
        missing.discard(int(index))
        self.add(_Wire(connection, int(index), self._wait_s))


def follow(
  address: LinkAddress, index: int, join_timeout_s: float, wait_timeout_s: float
) -> Link:
  """Connects to process 0."""
  link = Link(index, wait_timeout_s)
  try:
    connection = socket.create_connection(
      (address.host, address.port), join_timeout_s
    )
  except OSError as error:
    raise DeadlineExceeded(
      f"learner process {index} could not reach process 0 at {address.host}:"
      f"{address.port} within {join_timeout_s:g} s: {error}. Look at: the log "
      "of process 0, and whether a firewall lets this machine through"
    ) from error
  hello = f"{address.secret} {index}".ljust(_HELLO_BYTES)
  connection.sendall(hello.encode())
  link.add(_Wire(connection, 0, wait_timeout_s))
  return link


def _end(status: int) -> NoReturn:
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  os._exit(status)
