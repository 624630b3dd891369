r"""Real runs, asynchronous and synchronous, on the same cores in turn.

  python -m bench.system.asynchronous --model=quickstart --repeats=3 \
    --output=quickstart.csv
  python -m bench.system.asynchronous --repeats=3 --answers=16,64 \
    --model=models/SmolLM2-135M-Instruct --output=smollm2.csv

The arms are those of `studies/configs/asynchronous.py`. Each is run

- together: one process, which has all cores for playing and for training;
- apart: a rollout server has some cores, and learner, controller and
  environments have the others;
- colocated: two rollout servers have half of the cores each, and the learner
  has all, so that a small policy, which decodes on one core, plays on both.

Every repeat is a seed and runs all of them once; each repeat begins with
another one, so that none is always the first. `--arms` and `--layouts` name
some of them. `--answers` are limits of an
answer's tokens, each with all of these runs: longer ones are less even.

A line of `--output` is a run. Its speed is from the second update on, since the
first one compiles; seconds are means of the same updates; `success` is that of
the training episodes of the last quarter of the updates, so at equal episodes;
`unevenness` is the time of a group over that of an episode; the product is
XLA's rate for float32 squares of 2048 on all cores, just before the run. Where
it or `load` differs between runs, something else was running, and the speeds
say little. `ratio` is the speed over that of the best synchronous layout, which
has the highest mean speed, in the same repeat.

The same command goes on with the runs that are missing: of each that has ended
`--workdir` keeps metrics, logs and the line, but no weights.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.files import reading, write_whole
from agentrl_jax.metrics import FILE, Row, read_metrics
from bench.learner.train_step import WIDTH, square_product
from bench.system.pipeline import counts
from bench.timing import MAX_IDLE_FACTOR
from launch.reports import measured
from studies.configs.asynchronous import ARMS, QUICKSTART, SYNCHRONOUS

Run = dict[str, Any]  # a line: a cell's fields, and what came of it
TOGETHER, APART, COLOCATED = LAYOUTS = ("together", "apart", "colocated")
SPEED = "updates_per_minute"
TABLE = """by answers, arm, cores
updates per minute = {updates_per_minute:.2f}
over the best synchronous = {ratio:.2f} ({ratio.min:.2f} to {ratio.max:.2f})
wait, s = {wait_s:.1f}
train, s = {train_s:.1f}
staleness = {staleness_mean:.2f}
success = {success:.1%}
group / episode = {unevenness:.2f}
"""
GROUP_S, EPISODE_S = "rollout/group_s/", "rollout/episode_s/"
_STOP_S = 60.0  # for a rollout server to end after SIGTERM
_PRODUCTS = 5
_TAIL = 1500  # characters of a log that an error shows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """A run to make."""

  arm: str
  cores: str  # one of LAYOUTS
  answers: int  # limit of an answer's tokens; 0: the config's
  repeat: int  # and the seed

  @property
  def name(self) -> str:
    """Name of the run's folder."""
    limit = f"-t{self.answers}" if self.answers else ""
    return f"{self.arm}-{self.cores}{limit}-s{self.repeat}"


def cells(
  answers: Sequence[int],
  repeats: int,
  arms: Sequence[str] = tuple(ARMS),
  layouts: Sequence[str] = LAYOUTS,
) -> Iterator[Cell]:
  """Yields all runs in order: each repeat begins with another one."""
  for repeat in range(repeats):
    of_one = [
      Cell(arm=arm, cores=cores, answers=limit, repeat=repeat)
      for limit in answers
      for arm in arms
      for cores in layouts
    ]
    first = repeat % len(of_one)
    yield from of_one[first:] + of_one[:first]


def flags(cell: Cell, model: str, updates: int, workdir: str) -> list[str]:
  """Returns the flags that learner and rollout server have in common."""
  folder = "" if model == QUICKSTART else f",{model}"
  limit = [f"--config.episode.max_answer_tokens={cell.answers}"]
  return [
    f"--config=studies/configs/asynchronous.py:{cell.arm}{folder}",
    f"--config.seed={cell.repeat}",
    f"--config.name={cell.name}",
    f"--config.workdir={workdir}",
    f"--config.warm_start.store={workdir}/stages",
    f"--config.train.steps={updates}",
    f"--config.checkpoint.every={updates}",
    *(limit if cell.answers else []),
  ]


def measure(cell: Cell, options: argparse.Namespace, product: "Product") -> Run:
  """Makes a run, unless it was made before, and returns its line.

  Raises `ConfigError` with the end of the log of a process that fails.
  """
  workdir = pathlib.Path(options.workdir) / pathlib.Path(options.model).name
  folder = workdir / cell.name
  line = folder.with_suffix(".json")
  if line.exists():
    return _read_line(line, options.updates)
  state = {"load": os.getloadavg()[0], "product_gflops": product.gflops()}
  if folder.exists():
    shutil.rmtree(folder)  # half a run, whose speed would have a gap in it
  common = [
    *flags(cell, options.model, options.updates, str(workdir)),
    *options.override,
  ]
  halves = [options.learner_cores, options.rollout_cores]
  servers, learner = {
    TOGETHER: ([], ",".join(halves)),
    APART: ([options.rollout_cores], options.learner_cores),
    COLOCATED: (halves, ",".join(halves)),
  }[cell.cores]
  with contextlib.ExitStack() as stack:
    addresses = [
      stack.enter_context(_server(cores, common, folder, number))
      for number, cores in enumerate(servers)
    ]
    if addresses:
      common.append(f"--config.rollouts.servers={','.join(addresses)}")
    _run(learner, "launch.train", common, folder)
  run = {
    "model": workdir.name,
    **dataclasses.asdict(cell),
    **read_run(folder),
    **state,
  }
  (folder / FILE).rename(folder.with_suffix(f".{FILE}"))
  write_whole(line, json.dumps(run, indent=2))
  shutil.rmtree(folder)  # its weights: gigabytes
  return run


def _read_line(path: pathlib.Path, updates: int) -> Run:
  with reading(path):
    run: Run = json.loads(path.read_text("utf-8"))
  if run["updates"] != updates:
    raise ConfigError(
      f"{path} is a run of {run['updates']} updates, and --updates is "
      f"{updates}: give the same number, or another --workdir"
    )
  return run


def _command(cores: str, module: str, given: Sequence[str]) -> list[str]:
  return ["taskset", "-c", cores, sys.executable, "-m", module, *given]


def _run(
  cores: str, module: str, given: Sequence[str], folder: pathlib.Path
) -> None:
  log = _log(folder, module)
  with log.open("wb") as file:
    command = _command(cores, module, given)
    code = subprocess.run(command, stdout=file, stderr=file, check=False)
  if code.returncode:
    raise ConfigError(_failure(module, code.returncode, log))


@contextlib.contextmanager
def _server(
  cores: str, common: Sequence[str], folder: pathlib.Path, number: int
) -> Iterator[str]:
  """Runs a rollout server; gives its address."""
  module = "launch.serve_rollouts"
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  log = _log(folder, f"{module}_{number}")
  with log.open("wb") as file:
    command = _command(cores, module, [*common, f"--port={port}"])
    server = subprocess.Popen(command, stdout=file, stderr=file)
  try:
    yield f"127.0.0.1:{port}"
    if server.poll():
      raise ConfigError(_failure(module, server.returncode, log))
  finally:
    server.send_signal(signal.SIGTERM)
    try:
      server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
      server.kill()
      server.wait()


def _log(folder: pathlib.Path, module: str) -> pathlib.Path:
  folder.parent.mkdir(parents=True, exist_ok=True)
  return folder.with_suffix(f".{module.rpartition('.')[2]}.log")


def _failure(module: str, code: int, log: pathlib.Path) -> str:
  end = log.read_text("utf-8", "replace")[-_TAIL:]
  return f"{module} ended with {code}; {log} ends with:\n{end}"


def read_run(folder: pathlib.Path) -> Run:
  """Reads speed, seconds, staleness and success of a finished run."""
  rows = [row for row in read_metrics(folder / FILE) if row.stage == "rl"]
  if len(rows) < 2:
    raise ConfigError(
      f"{folder} has {len(rows)} updates of RL; a speed needs 2 or more, of "
      "which the first is not counted: --updates"
    )
  later, last = rows[1:], rows[-1].values
  quarter = rows[-max(1, len(rows) // 4) :]
  took_s = rows[-1].time_s - rows[0].time_s
  return {
    "updates": len(rows),
    "updates_per_minute": 60 * len(later) / took_s,
    "wait_s": statistics.fmean(row.values["seconds/wait"] for row in later),
    "train_s": statistics.fmean(row.values["seconds/train"] for row in later),
    "staleness_mean": last["staleness/mean"],
    "staleness_max": int(last["staleness/max"]),
    "success": statistics.fmean(_mean(row, "success/") for row in quarter),
    "unevenness": _mean(rows[-1], GROUP_S) / _mean(rows[-1], EPISODE_S),
  }


def _mean(row: Row, prefix: str) -> float:
  """Returns the mean of a metric over the tasks."""
  return statistics.fmean(
    value for name, value in row.values.items() if name.startswith(prefix)
  )


def with_ratios(runs: Sequence[Run]) -> list[Run]:
  """Adds `ratio`: the speed over the best synchronous one of the repeat.

  It is NaN where the repeat has not been run there.
  """
  found: list[Run] = []
  for limit in dict.fromkeys(run["answers"] for run in runs):
    alike = [run for run in runs if run["answers"] == limit]
    base = _speeds(alike, _best_synchronous(alike))
    found += (
      {**run, "ratio": run[SPEED] / base.get(run["repeat"], math.nan)}
      for run in alike
    )
  return found


def _best_synchronous(runs: Sequence[Run]) -> str:
  """Returns the cores of the layout with the highest mean speed."""
  means = {
    cores: statistics.fmean(speeds.values())
    for cores in LAYOUTS
    if (speeds := _speeds(runs, cores))
  }
  return max(means, key=means.__getitem__, default=TOGETHER)


def _speeds(runs: Sequence[Run], cores: str) -> dict[int, float]:
  """Returns the synchronous speed of each repeat."""
  return {
    run["repeat"]: run[SPEED]
    for run in runs
    if run["arm"] == SYNCHRONOUS and run["cores"] == cores
  }


def contention(runs: Sequence[Run]) -> str:
  """Returns a sentence if other work shared the cores; "" if none did."""
  rates = [run["product_gflops"] for run in runs]
  if max(rates) <= MAX_IDLE_FACTOR * min(rates):
    return ""
  return (
    f"The product's rate was {min(rates):.0f} to {max(rates):.0f} GFLOP/s: "
    "other work shared the cores, so these speeds say little. Remove the .json "
    "files of slow runs from --workdir, and give the same command again.\n"
  )


class Product:
  """XLA's rate for products of large squares, on all cores of this process."""

  def __init__(self) -> None:
    self._product = square_product()

  def gflops(self) -> float:
    """Returns the median of a few, in billions of operations per second."""
    times = [self._product().wall for _ in range(_PRODUCTS)]
    return 2e-9 * WIDTH**3 / statistics.median(times)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--model", default=QUICKSTART, help="quickstart, or SmolLM2's folder"
  )
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--updates", type=int, default=20, help="of each run")
  parser.add_argument("--answers", type=counts, default=[0])
  for option, known in (("--arms", ARMS), ("--layouts", LAYOUTS)):
    parser.add_argument(option, type=some_of(known), default=[*known])
  parser.add_argument("--learner_cores", default="0", help="as for taskset -c")
  parser.add_argument("--rollout_cores", default="1")
  parser.add_argument("--workdir", default="runs/asynchronous")
  parser.add_argument("--output", type=measured.output, help="a CSV, added to")
  parser.add_argument(
    "override", nargs="*", help="more flags of all runs, after --"
  )
  return parser.parse_args(arguments)


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
  """Returns a reader of names with commas between; others are refused."""

  def read(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - {*known}:
      raise argparse.ArgumentTypeError(
        f"there is no {', '.join(sorted(unknown))}; there are "
        f"{', '.join(known)}"
      )
    return names

  return read


def main(arguments: Sequence[str] | None = None) -> None:
  """Makes the runs that `--output` lacks, and prints the table."""
  options = _parse(arguments)
  product = Product()
  runs: list[Run] = []
  try:
    chosen = (options.answers, options.repeats, options.arms, options.layouts)
    for cell in cells(*chosen):
      runs.append(measure(cell, options, product))
      sys.stdout.write(f"{json.dumps(runs[-1])}\n")
      sys.stdout.flush()
      if options.output:
        measured.keep(options.output, with_ratios(runs))
  except AgentRLError as error:
    sys.exit(f"{type(error).__name__}: {error}")
  sys.stdout.write(measured.table(with_ratios(runs), TABLE))
  sys.stdout.write(contention(runs))


if __name__ == "__main__":
  main()
