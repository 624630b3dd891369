"""Connects to a MariaDB server, and starts a private one.

A private server has a temporary folder and listens only on a socket file there.
It ends when it is stopped or Python exits; a Python that is killed leaves the
folder behind, and perhaps the server.
"""

import atexit
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
from typing import Any

import pymysql

from agentrl_jax.errors import ConfigError, DeadlineExceeded, EnvironmentFault

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.05
CONNECT_DEADLINE_S = 10
LOG_CHARS = 600  # of the server's log, shown when it does not start


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
  """The address of a server and the credentials of its administrator."""

  host: str = ""
  port: int = 3306
  user: str = "root"
  password: str = ""
  socket: str = ""  # a file, used instead of host and port

  def connect(self, **options: Any) -> Any:
    """Connects; raises `EnvironmentFault` if the server does not answer."""
    settings: dict[str, Any] = {
      "host": self.host,
      "port": self.port,
      "user": self.user,
      "password": self.password,
      "charset": "utf8mb4",
      "autocommit": True,
      "connect_timeout": CONNECT_DEADLINE_S,
      **options,
    }
    try:
      if not self.socket:
        return pymysql.connect(**settings)
      # A socket file needs no TLS, which takes 20 ms to set up.
      connection = pymysql.connect(
        **settings, ssl_disabled=True, defer_connect=True
      )
      connection.connect(_connected(self.socket))
      return connection
    except (pymysql.err.OperationalError, OSError) as error:
      raise EnvironmentFault(
        f"MariaDB at {self.socket or f'{self.host}:{self.port}'} does not let "
        f"{settings['user']!r} in: {error}; see that it runs, and its log"
      ) from error


def _connected(path: str) -> socket.socket:
  """Connects to the file; the driver would not close the socket on failure."""
  connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
  try:
    connection.connect(path)
  except OSError:
    connection.close()
    raise
  return connection


def read_address(server: str) -> Address:
  """Parses `host:port` or `user:password@host:port`."""
  parts = urllib.parse.urlsplit(f"//{server}")
  try:
    port = parts.port or 3306
  except ValueError as error:
    raise ConfigError(_bad_server(server)) from error
  if not parts.hostname or parts.path or parts.query:
    raise ConfigError(_bad_server(server))
  return Address(
    host=parts.hostname,
    port=port,
    user=urllib.parse.unquote(parts.username or "root"),
    password=urllib.parse.unquote(parts.password or ""),
  )


class PrivateServer:
  """A server process; `start` and `stop` block."""

  def __init__(self) -> None:
    for program in ("mariadbd", "mariadb-install-db"):
      if shutil.which(program) is None:
        raise ConfigError(
          f"engine='mariadb' needs the program {program}, which is not on the "
          "PATH; install it (Debian: mariadb-server-core and "
          "mariadb-client-core), or name a running one with server=host:port"
        )
    self._folder: pathlib.Path | None = None
    self._process: subprocess.Popen[bytes] | None = None

  @property
  def is_up(self) -> bool:
    """True if the process runs."""
    return self._process is not None and self._process.poll() is None

  def start(self) -> Address:
    """Sets up an empty server and waits until it answers."""
    # The path must be short: a socket's may have 107 bytes.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix="dbbench-"))
    atexit.register(self.stop)
    try:
      self._install()
      self._process = self._launch()
      return self._wait_until_up()
    except BaseException:
      self.stop()
      raise

  def stop(self) -> None:
    """Ends the process and removes its folder; may be called twice."""
    atexit.unregister(self.stop)
    process, self._process = self._process, None
    if process is not None:
      process.terminate()
      try:
        process.wait(STOP_DEADLINE_S)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder, self._folder = self._folder, None
    if folder is not None:
      shutil.rmtree(folder, ignore_errors=True)

  def _install(self) -> None:
    result = subprocess.run(
      [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={self._path('data')}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        *_as_user(),
      ],
      capture_output=True,
      text=True,
      timeout=START_DEADLINE_S,
    )
    if result.returncode:
      raise EnvironmentFault(
        f"mariadb-install-db ended with status {result.returncode}: "
        f"{(result.stdout + result.stderr)[-LOG_CHARS:]}"
      )

  def _launch(self) -> subprocess.Popen[bytes]:
    # No data outlives the server, so it need not flush to disk.
    with open(self._path("log"), "wb") as log:
      return subprocess.Popen(
        [
          "mariadbd",
          "--no-defaults",
          f"--datadir={self._path('data')}",
          f"--socket={self._path('socket')}",
          f"--pid-file={self._path('pid')}",
          "--skip-networking",
          "--skip-log-bin",
          "--local-infile=0",
          f"--secure-file-priv={self._path('data')}",
          "--innodb-flush-log-at-trx-commit=0",
          "--innodb-buffer-pool-size=32M",
          "--performance-schema=OFF",
          "--max-connections=2000",
          *_as_user(),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  def _wait_until_up(self) -> Address:
    address = Address(socket=self._path("socket"))
    deadline = time.monotonic() + START_DEADLINE_S
    while self._process is not None and self._process.poll() is None:
      try:
        address.connect().close()
        return address
      except EnvironmentFault as error:
        if time.monotonic() > deadline:
          raise DeadlineExceeded(
            "DBBench waited for its MariaDB server to answer for "
            f"{START_DEADLINE_S} s; its log ends: {self._log()}"
          ) from error
        time.sleep(POLL_S)
    raise EnvironmentFault(
      f"MariaDB did not start; its log ends: {self._log()}"
    )

  def _path(self, name: str) -> str:
    return str(self._folder / name) if self._folder else name

  def _log(self) -> str:
    path = pathlib.Path(self._path("log"))
    return path.read_text()[-LOG_CHARS:] if path.exists() else "(no log)"


def _as_user() -> list[str]:
  """Returns the option without which the server refuses to run as root."""
  return ["--user=root"] if os.geteuid() == 0 else []


def _bad_server(server: str) -> str:
  return (
    f"server={server!r} is not of the form host:port or "
    "user:password@host:port, as in root:secret@localhost:3306"
  )
