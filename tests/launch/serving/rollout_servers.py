"""Starts real rollout servers of a tiny run, for tests that kill them."""

import multiprocessing
import os
import signal

from tests.clocks import wait_until
from tests.service.processes import free_port

_FORK = multiprocessing.get_context("forkserver")
# What a server imports but for its own flags, which a learner has, too.
_FORK.set_forkserver_preload(
  [
    "agentrl_jax.rollout.server.snapshots",
    "launch.serving.service",
    "tests.launch.tiny",
  ]
)
DEADLINE_S = 600.0


class Server:
  """`launch.serve_rollouts` in a process of its own.

  A server forks it that has imported everything, so a start costs no imports.
  """

  def __init__(self, workdir, *, port=None, changes=None):
    self.port = port or free_port()
    self.address = f"127.0.0.1:{self.port}"
    self.log = workdir / f"server_{self.port}.log"
    self.log.touch()
    self.process = _FORK.Process(
      target=_serve,
      args=(str(workdir), self.port, str(self.log), changes or {}),
    )
    self.process.start()

  @property
  def said(self):
    return self.log.read_text()

  def wait_for(self, words):
    wait_until(
      lambda: words in self.said or not self.process.is_alive(),
      lambda: f"{words!r} in {self.said}",
      DEADLINE_S,
    )
    assert words in self.said, f"no {words!r} in {self.said}"

  def end(self, number):
    """Sends the signal and waits: the exit status."""
    if self.process.is_alive():
      os.kill(self.process.pid, number)
    self.process.join(DEADLINE_S)
    return self.process.exitcode

  def kill(self):
    self.end(signal.SIGKILL)


def _serve(workdir, port, log, changes):
  file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  for stream in (1, 2):
    os.dup2(file, stream)
  from launch import serve_rollouts
  from tests.launch import tiny

  config = tiny.get_config()
  config.workdir = workdir
  config.update_from_flattened_dict(changes)
  serve_rollouts.serve(config, "127.0.0.1", port)
