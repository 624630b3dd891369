"""Speed of environments, in this process and in containers.

  python -m bench.environments                     # all that are embedded
  python -m bench.environments dbbench --place embedded contained
  python -m bench.environments --flat 10000        # does memory grow?
  python -m bench.environments dbbench --stalls    # who waits for long SQL?

Experts without mistakes play tasks that were not played before, so the time of
a session includes all its costs: creation of the task, opening, every step,
freeing. Each row has its own process. `embedded` rows are per second of
processor time, which is the rate of one core; `contained` rows are per second
of wall time, with engine, worker and experts on this machine. Memory is the
increase per open session, of the process or of its containers. `step alone`
excludes the creation of tasks and experts. `bar` is the rate that the project
requires of an embedded engine; the last column is the ratio to it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from rich.table import Table

from agentrl_jax.env.interface import Environment
from agentrl_jax.env.loading import load_environment
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from bench.environments.episodes import (
  Meter,
  memory_per_session,
  quantiles_ms,
  resident_kib,
)
from environments.dbbench import problem
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.options import DBBenchOptions
from launch.processes.terminal import plain_console
from tests.environments.dbbench.engines.long_statements import LONG_STATEMENTS

CONCURRENCY = (1, 16, 128)
DEADLINE_S = 900  # of a row


@dataclasses.dataclass(frozen=True)
class Subject:
  """An environment, its two engines, and the bar of the embedded one."""

  target: str
  embedded: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  contained: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  image: bool = True  # contained in its own image; else by its own engine
  bar: tuple[str, float] | None = None


SUBJECTS = {
  "alfworld": Subject(
    "environments.alfworld:ALFWorld", bar=("steps_alone", 5000)
  ),
  "dbbench": Subject(
    "environments.dbbench:DBBench",
    contained={"engine": "mariadb"},
    bar=("sessions", 400),
  ),
  "knowledgegraph": Subject(
    "environments.knowledgegraph:KnowledgeGraph", bar=("steps_alone", 2000)
  ),
  "os_interaction": Subject(
    "environments.os_interaction:OSInteraction",
    embedded={"engine": "sandbox"},  # needs environments.os_interaction.rootfs
    contained={"engine": "docker", "num_warm": 8},
    image=False,
  ),
  "webshop": Subject("environments.webshop:WebShop"),
}


@dataclasses.dataclass(frozen=True)
class Row:
  """Measurements of one process."""

  name: str
  place: str
  concurrency: int
  sessions: float  # per second, of the processor or of the clock
  steps: float
  steps_alone: float  # per second that is spent in steps
  start_ms: tuple[float, float]  # to the first observation: median, p99
  step_ms: tuple[float, float]
  session_kib: float


async def measure(
  name: str, place: str, concurrency: int, seconds: float
) -> Row:
  """Measures one row, after a warm-up of one session per player."""
  subject = SUBJECTS[name]
  async with _environment(subject, name, place, concurrency) as environment:
    players = load_environment(subject.target, subject.embedded)
    meter = Meter(environment, players)
    await asyncio.gather(*(meter.play() for _ in range(min(concurrency, 16))))
    memory = await memory_per_session(environment, players, place, concurrency)
    meter.starts_s, meter.steps_s, meter.num_sessions = [], [], 0
    clock = time.process_time if place == "embedded" else time.monotonic
    begun = clock()
    when = time.monotonic() + seconds
    await asyncio.gather(*(meter.play_until(when) for _ in range(concurrency)))
    taken = clock() - begun
    await players.close()
  return Row(
    name,
    place,
    concurrency,
    meter.num_sessions / taken,
    len(meter.steps_s) / taken,
    len(meter.steps_s) / sum(meter.steps_s),
    quantiles_ms(meter.starts_s),
    quantiles_ms(meter.steps_s),
    memory,
  )


async def measure_growth(name: str, num_sessions: int) -> str:
  """Measures resident memory after each tenth of so many sessions."""
  subject = SUBJECTS[name]
  environment = load_environment(subject.target, subject.embedded)
  meter = Meter(environment, environment)
  found = []
  for _ in range(10):
    for _ in range(num_sessions // 10):
      await meter.play()
    gc.collect()
    found.append(resident_kib() / 1024)
  await environment.close()
  return f"{name}: " + " ".join(f"{mib:.1f}" for mib in found) + " MiB"


async def measure_stalls() -> str:
  """Runs long statements, and measures how long the event loop waited."""
  engine, lines = SQLiteEngine(DBBenchOptions(statement_limit_s=2.0)), []
  table = problem.Table(
    "old shops", ("shop", "city", "price"), (("x", "y", "7"),) * 3
  )
  async with engine.open([table]) as database:
    await database.execute("CREATE TABLE w (a TEXT)")  # starts the process
  for name, statements in LONG_STATEMENTS.items():
    longest = 0.0
    async with engine.open([table]) as database:
      begun = time.perf_counter()
      for sql in statements:
        last = time.perf_counter()
        running = asyncio.create_task(database.execute(sql))
        while not running.done():
          await asyncio.sleep(0.001)
          now = time.perf_counter()
          longest, last = max(longest, now - last), now
      taken, reply = time.perf_counter() - begun, running.result()[:50]
    lines.append(f"{name}: {taken:.2f} s, wait {1e3 * longest:.0f} ms, {reply}")
  await engine.close()
  return "\n".join(lines)


@contextlib.asynccontextmanager
async def _environment(
  subject: Subject, name: str, place: str, concurrency: int
) -> AsyncIterator[Environment]:
  if place == "contained" and subject.image:
    spec = ContainerSpec(
      image=f"agentrl_jax/{name}",
      options=subject.contained,
      concurrency=concurrency,
      memory_mb=4096,
      pids=2048,
      cpus=2.0,
      start_timeout_s=120,
    )
    with engines.connect() as engine:
      async with container_worker(engine, spec) as environment:
        yield environment
    return
  options = subject.embedded if place == "embedded" else subject.contained
  environment = load_environment(subject.target, options)
  try:
    yield environment
  finally:
    await environment.close()


def _rows(args: argparse.Namespace) -> Iterator[Row]:
  for name in args.environment or SUBJECTS:
    for place in args.place:
      for concurrency in args.concurrency:
        words = ["--row", name, place, str(concurrency)]
        done = subprocess.run(
          [sys.executable, "-m", __spec__.name, *words]
          + [f"--seconds={args.seconds}"],
          stdout=subprocess.PIPE,
          check=True,
          timeout=DEADLINE_S,
        )
        body = json.loads(done.stdout)
        yield Row(**{k: _tupled(v) for k, v in body.items()})


def _tupled(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _show(rows: Iterator[Row]) -> None:
  titles = (
    "environment",
    "place",
    "at once",
    "sessions/s",
    "steps/s",
    "steps alone/s",
  )
  titles += ("start ms, p99", "step ms, p99", "KiB/session", "bar", "x bar")
  table = Table(*titles)
  for row in rows:
    table.add_row(
      row.name,
      row.place,
      str(row.concurrency),
      f"{row.sessions:,.1f}",
      f"{row.steps:,.0f}",
      f"{row.steps_alone:,.0f}" if row.place == "embedded" else "",
      "{:.2f}, {:.2f}".format(*row.start_ms),
      "{:.3f}, {:.3f}".format(*row.step_ms),
      f"{row.session_kib:,.0f}",
      *_bar(row),
    )
  plain_console(width=160).print(table)


def _bar(row: Row) -> tuple[str, str]:
  bar = SUBJECTS[row.name].bar
  if bar is None or row.place != "embedded":
    return "", ""
  what, least = bar
  return (
    f"{least:,.0f} {what.replace('_', ' ')}/s",
    f"{getattr(row, what) / least:.2f}",
  )


def main() -> None:
  """Parses the command line; only this program passes `--row`."""
  parser = argparse.ArgumentParser(
    prog="python -m bench.environments", description=__doc__.partition("\n")[0]
  )
  add = parser.add_argument
  add("environment", nargs="*", help=f"of {', '.join(SUBJECTS)}; all if none")
  add("--place", nargs="+", default=["embedded"], metavar="PLACE")
  add("--concurrency", nargs="+", type=int, default=CONCURRENCY)
  add("--seconds", type=float, default=5.0, help="per row")
  add("--flat", type=int, metavar="SESSIONS", help="memory along so many")
  add("--stalls", action="store_true", help="of other sessions, by long SQL")
  add("--row", nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.row:
    name, place, concurrency = args.row
    row = asyncio.run(measure(name, place, int(concurrency), args.seconds))
    json.dump(dataclasses.asdict(row), sys.stdout)
  elif args.stalls:
    print(asyncio.run(measure_stalls()))  # noqa: T201
  elif args.flat:
    for name in args.environment or SUBJECTS:
      print(asyncio.run(measure_growth(name, args.flat)))  # noqa: T201
  else:
    _show(_rows(args))


if __name__ == "__main__":
  main()
