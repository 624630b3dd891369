r"""Serves a config's environments on this machine to a controller elsewhere.

  python -m launch.serve_environments --config=configs/quickstart.py \
    --environments=dbbench,webshop --controller=grpc://10.0.0.2:5021

Starts workers (agentrl_jax.service.worker), each in its own process, with the
config's options for the environment, and restarts those that end. They dial the
controller, so this machine needs no open port. SIGTERM and Ctrl-C end them all;
with `--drain_s=300` open sessions get so many seconds to end by themselves, and
a second signal frees them.

An environment with `place.containers` has one worker, which plays in that many
containers on this machine (agentrl_jax.service.docker.worker).
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from absl import flags, logging

from agentrl_jax.bearer_token import read_secret
from agentrl_jax.errors import ConfigError
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.service.worker.main import DRAIN_FLAG, TOKEN_FLAG
from agentrl_jax.train.config.checks import require_one_of
from launch.config import command_line
from launch.config.settings import EnvironmentSettings, read_environments

CONFIG = command_line.define_config()

_ENVIRONMENTS = flags.DEFINE_list(
  "environments", [], "Which of the config's tasks.names are played here."
)
_CONTROLLER = flags.DEFINE_string(
  "controller", "", "Whom the workers dial, as grpc://host:5021."
)
_TOKEN = flags.DEFINE_string(
  "token", "", "A file with the controller's token of workers, or env:NAME."
)
_PROCESSES = flags.DEFINE_integer(
  "processes", 0, "Workers per environment; 0: as many as there are cores."
)
_DRAIN_S = flags.DEFINE_float(
  "drain_s",
  0.0,
  "Seconds for open sessions to end, after a signal to end the workers.",
  lower_bound=0.0,
)
flags.mark_flag_as_required("config")

LOOK_S = 0.5  # between looks at the workers
PAUSE_S = 1.0  # before one that ended is started again
END_S = 30.0  # that workers get to free their sessions
_END_LOOK_S = 0.1


class Workers:
  """Worker processes, by the command that started them."""

  def __init__(self, commands: Sequence[Sequence[str]]):
    self._commands = [list(command) for command in commands]
    self._running = [subprocess.Popen(command) for command in self._commands]
    self._again_at: dict[int, float] = {}

  def tend(self) -> None:
    """Restarts workers that have ended, after a pause."""
    now = time.monotonic()
    for i, process in enumerate(self._running):
      if process.poll() is None:
        continue
      if i not in self._again_at:
        logging.error(
          "a worker ended with status %s, and starts again in %g s: %s",
          process.returncode,
          PAUSE_S,
          " ".join(self._commands[i]),
        )
        self._again_at[i] = now + PAUSE_S
      elif now >= self._again_at[i]:
        del self._again_at[i]
        self._running[i] = subprocess.Popen(self._commands[i])

  def end(self, within_s: float, signals: Sequence[int]) -> None:
    """Sends SIGTERM to all workers, and SIGKILL to those that stay.

    `signals` are those that this process has got; one that comes meanwhile is
    passed on.
    """
    deadline = time.monotonic() + within_s
    num_sent = 0
    while self._are_running() and time.monotonic() < deadline:
      if num_sent < max(1, len(signals)):
        num_sent = max(1, len(signals))
        for process in self._running:
          process.terminate()
      time.sleep(_END_LOOK_S)
    for process in self._running:
      process.kill()
      process.wait()

  def _are_running(self) -> bool:
    return any(process.poll() is None for process in self._running)


def commands(
  environments: Mapping[str, EnvironmentSettings],
  containers: Mapping[str, ContainerSpec],
  names: Sequence[str],
  controller: str,
  processes: int,
  token: str = "",
  drain_s: float = 0.0,
) -> Iterator[list[str]]:
  """Returns the command line of every worker."""
  if not names:
    raise ConfigError(
      f"--environments must name some of {', '.join(environments)}"
    )
  for name in names:
    require_one_of("--environments", name, environments)
  each = processes or max(1, (os.cpu_count() or 1) // len(names))
  common = ["--split=train", "--port=0", f"--controller={controller}"]
  if token:
    common.append(f"{TOKEN_FLAG}{token}")
  if drain_s:
    common.append(f"{DRAIN_FLAG}{drain_s:g}")
  for name in names:
    if spec := containers.get(name):
      yield [
        sys.executable,
        "-m",
        "agentrl_jax.service.docker.worker",
        f"--spec={dataclasses.asdict(spec)!r}",
        f"--containers={environments[name].place.containers}",
        f"--name={name}",
        *common,
      ]
    else:
      for _ in range(each):
        yield [*_worker(environments[name]), f"--name={name}", *common]


def _worker(settings: EnvironmentSettings) -> list[str]:
  return [
    sys.executable,
    "-m",
    "agentrl_jax.service.worker",
    f"--environment={settings.target}",
    *(f"--default={key}={value!r}" for key, value in settings.options.items()),
    *(f"--option={pair}" for pair in settings.place.options),
  ]


def main() -> None:
  """Serves as the flags say."""
  if not _CONTROLLER.value.startswith("grpc://"):
    raise ConfigError(
      f"--controller={_CONTROLLER.value} must be grpc://host:port, where the "
      "controller's --grpc-port listens"
    )
  read_secret(_TOKEN.value, TOKEN_FLAG)  # before any worker starts
  wanted = list(
    commands(
      *read_environments(CONFIG.value),
      _ENVIRONMENTS.value,
      _CONTROLLER.value,
      _PROCESSES.value,
      _TOKEN.value,
      _DRAIN_S.value,
    )
  )
  stopped: list[int] = []
  for sign in (signal.SIGTERM, signal.SIGINT):
    signal.signal(sign, lambda number, _: stopped.append(number))
  workers = Workers(wanted)
  try:
    while not stopped:
      workers.tend()
      time.sleep(LOOK_S)
  finally:
    workers.end(_DRAIN_S.value + END_S, stopped)


if __name__ == "__main__":
  command_line.run(main, verbosity=logging.INFO)
