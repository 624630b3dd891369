"""Controllers and workers as processes of their own, for tests to kill."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from tests.clocks import wait_until

ROOT = pathlib.Path(__file__).parents[2]
START_S = 120.0


class Process:
  """A process whose standard error is kept, line by line.

  `open_files` are its limits, soft and hard, if not those of this process.
  """

  def __init__(self, *arguments, open_files=None):
    self.lines = []
    self._changed = threading.Condition()
    self._process = subprocess.Popen(
      [*_limited(open_files), sys.executable, *arguments],
      cwd=ROOT,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _read(self):
    for line in self._process.stderr:
      with self._changed:
        self.lines.append(line.rstrip())
        self._changed.notify_all()

  def wait_for(self, words):
    """Waits for the first line with these words, and returns it."""
    end = time.monotonic() + START_S
    with self._changed:
      while not (found := [line for line in self.lines if words in line]):
        if self._process.poll() is not None or time.monotonic() > end:
          raise AssertionError(f"no {words!r} in: " + "\n".join(self.lines))
        self._changed.wait(0.1)
    return found[0]

  def kill(self):
    """Kills the process, as the kernel does when memory runs out."""
    self.stop(signal.SIGKILL)

  def stop(self, sign=signal.SIGTERM):
    self._process.send_signal(sign)
    self._process.wait(timeout=30)
    self._reader.join(timeout=30)
    self._process.stderr.close()

  @property
  def is_running(self):
    return self._process.poll() is None

  @property
  def pid(self):
    return self._process.pid


def _limited(open_files):
  """Returns the words before a command that limit its open files."""
  if open_files is None:
    return ()
  soft, hard = open_files
  script = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"'
  return ("sh", "-c", script, "sh")


@contextlib.contextmanager
def running(*arguments):
  """Runs a process until the end of the context."""
  process = Process(*arguments)
  try:
    yield process
  finally:
    if process.is_running:
      process.stop()


class ServiceProcess:
  """A controller, on ports that stay its own when it is started again."""

  def __init__(self, *options):
    self._options = options
    self.port, self.grpc_port = free_port(), free_port()
    self.url = f"http://127.0.0.1:{self.port}/api"
    self.grpc = f"grpc://127.0.0.1:{self.grpc_port}"

  def start(self, open_files=None):
    self.process = Process(
      "-m",
      "agentrl_jax.service.controller",
      f"--port={self.port}",
      f"--grpc-port={self.grpc_port}",
      *self._options,
      open_files=open_files,
    )
    self.process.wait_for("controller on")
    return self

  def stop(self):
    if self.process.is_running:
      self.process.stop()

  def get(self, path):
    with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as response:
      return json.load(response)

  def metrics(self):
    """Returns the text that Prometheus reads."""
    url = f"http://127.0.0.1:{self.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
      return response.read().decode()

  def post(self, path, body=None, session=None):
    """Returns the status, the JSON and the session's id of the reply."""
    request = urllib.request.Request(
      f"{self.url}/{path}",
      data=json.dumps(body).encode(),
      headers={"Content-Type": "application/json"}
      | ({} if session is None else {"session_id": str(session)}),
      method="POST",
    )
    try:
      with urllib.request.urlopen(request, timeout=60) as response:
        return (
          response.status,
          json.load(response),
          response.headers.get("session_id"),
        )
    except urllib.error.HTTPError as error:
      with error:
        return error.code, json.load(error), None

  def wait_for_workers(self, number, task, status="ALIVE"):
    """Waits until so many workers of a task have a status."""

    def are_there():
      workers = self.get("list_workers").get(task, {"workers": {}})["workers"]
      return sum(w["status"] == status for w in workers.values()) == number

    wait_until(are_there, f"{number} {status} workers of {task}", START_S)


def agentrl_worker(controller, *, name):
  """Returns arguments that run AgentRL's worker on our calculator task."""
  folder = tempfile.mkdtemp()
  config = pathlib.Path(folder) / "tasks.json"
  parameters = {"name": name, "concurrency": 2}
  config.write_text(
    json.dumps(
      {
        name: {
          "module": "tests.service.calculator_task.Calculator",
          "parameters": parameters,
        }
      }
    )
  )
  port = free_port()
  return (
    "-m",
    "agentrl.worker",
    name,
    f"--config={config}",
    f"--controller={controller}",
    f"--self=http://127.0.0.1:{port}/api",
    "--host=127.0.0.1",
    f"--port={port}",
  )


def agentrl_grpc_worker(controller, *, name):
  """Returns arguments that run it over gRPC, with a quicker heartbeat."""
  port = str(free_port())
  return ("-m", "tests.service.calculator_task", controller, name, port)


def our_worker(controller, *options, num_tasks=50):
  """Returns arguments that run our worker on sums."""
  return (
    "-m",
    "agentrl_jax.service.worker",
    "--environment=environments.arithmetic.environment:Arithmetic",
    f"--option=num_tasks={num_tasks}",
    "--port=0",
    f"--controller={controller}",
    *options,
  )


def free_port():
  """Returns a port that is free now, and probably for a moment more."""
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]
