"""Sessions at a controller, beside a bare relay of the same bytes.

  python -m bench.controller
  python -m bench.controller burst turns --sessions=10000
  python -m bench.controller turns --worker=grpc --open_files=1024

Controller, worker, relay and client are processes of their own. The relay is
the floor: aiohttp that gives each body of a request on to a server that answers
at once with as many bytes as the worker's, and gives that answer back; 8,000 at
once, so that 10,000 clients leave it files.

  burst   all sessions start at once; then all are cancelled
  turns   all start at once and play `--turns` turns, all in flight
  steady  100 sessions, of which each plays a turn every second: latencies

A session that fails is an error of the row. `cpu_us` is the CPU time of
controller or relay for each request, `of_floor` the relay's over the
controller's, `kib` what the controller's memory grew by per session. Latencies
are a client's, in milliseconds, `added` those through the controller less those
through the relay.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import aiohttp
from aiohttp import web

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.garbage import spare_collections

ROWS = ("burst", "turns", "steady")
ROOT = pathlib.Path(__file__).parents[2]
STEADY_SESSIONS, STEADY_TURNS, STEADY_PERIOD_S = 100, 20, 1.0
READY_S, CALL_S = 60.0, 900.0
_TEXT = "x" * 500  # of an answer, and of an observation
_ANSWER = {"messages": [{"role": "assistant", "content": _TEXT}]}
_RELAYED = 8000  # requests at once that the relay gives on
_TICKS = os.sysconf("SC_CLK_TCK")


class TakesTurns(Environment):
  """Answers at once, and never ends an episode."""

  name = "takes_turns"

  def indices(self, split: str) -> list[int]:
    """See `Environment.indices`."""
    del split
    return [0]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """See `Environment.open`."""
    del task, seed
    yield _Turns()


class _Turns(Session):
  tools = ()

  async def reset(self) -> Step:
    return Step((Message("user", _TEXT),))

  async def step(self, answer: Message) -> Step:
    del answer
    return Step((Message("user", _TEXT),), 0.0, Status.RUNNING)


@dataclasses.dataclass
class Measured:
  """Requests of a row, their errors, and their latencies."""

  seconds: float = 0.0
  errors: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  latencies_s: list[float] = dataclasses.field(default_factory=list)

  @property
  def num_requests(self) -> int:
    """Requests that were answered."""
    return len(self.latencies_s)

  def quantile_ms(self, share: float) -> float:
    """Returns the latency that this share of the requests does not exceed."""
    ordered = sorted(self.latencies_s)
    place = min(int(share * len(ordered)), len(ordered) - 1)
    return round(1e3 * ordered[place], 2)


class Client:
  """Plays sessions, and records what becomes of each request."""

  def __init__(self, http: aiohttp.ClientSession, url: str):
    self._http, self._url = http, url
    self.measured = Measured()

  async def start(self, wait_s: float) -> str | None:
    """Starts a session; returns its id, or None if that failed."""
    body = {"name": TakesTurns.name, "index": 0, "wait_s": wait_s}
    return await self._call("start_sample", body, {})

  async def play(self, session: str, turns: int, period_s: float = 0.0) -> None:
    """Plays turns, one every `period_s`, until one fails."""
    for _ in range(turns):
      begun = time.monotonic()
      if await self._call("interact", _ANSWER, {"session_id": session}) is None:
        return
      await asyncio.sleep(max(begun + period_s - time.monotonic(), 0.0))

  async def _call(
    self, endpoint: str, body: object, headers: dict[str, str]
  ) -> str | None:
    begun = time.monotonic()
    try:
      async with self._http.post(
        f"{self._url}/{endpoint}", json=body, headers=headers
      ) as answer:
        text = await answer.text()
        if answer.status != 200:
          self.measured.errors[f"{answer.status} {text[:80]}"] += 1
          return None
        self.measured.latencies_s.append(time.monotonic() - begun)
        return answer.headers.get("session_id", "")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
      self.measured.errors[repr(error)[:80]] += 1
      return None


async def _measure(row: str, url: str, sessions: int, turns: int) -> Measured:
  """Plays one row against a controller or a relay."""
  timeout = aiohttp.ClientTimeout(total=CALL_S)
  async with aiohttp.ClientSession(
    connector=aiohttp.TCPConnector(limit=0), timeout=timeout
  ) as http:
    client = Client(http, url)

    async def play(number: int) -> None:
      if row == "steady":
        await asyncio.sleep(number / sessions * STEADY_PERIOD_S)
      session = await client.start(CALL_S / 2)
      if row == "burst" or session is None:
        return
      period_s = STEADY_PERIOD_S if row == "steady" else 0.0
      await client.play(session, turns, period_s)

    begun = time.monotonic()
    await _with_progress(
      row, client.measured, [play(n) for n in range(sessions)]
    )
    client.measured.seconds = time.monotonic() - begun
    return client.measured


async def _with_progress(
  row: str, measured: Measured, plays: list[Coroutine[Any, Any, None]]
) -> None:
  """Awaits all, and says every ten seconds how far they are."""
  waiting = asyncio.gather(*plays)
  while not waiting.done():
    await asyncio.wait([waiting], timeout=10)
    failed = sum(measured.errors.values())
    sys.stderr.write(
      f"{row}: {measured.num_requests} requests answered, {failed} failed\n"
    )
  await waiting


@contextlib.contextmanager
def _process(arguments: list[str], open_files: int) -> Iterator[int]:
  """Runs a process of this benchmark; yields its number.

  Its soft limit of open files is `open_files`, as on most systems; what it does
  about that is its own affair.
  """

  def limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))

  process = subprocess.Popen(
    [sys.executable, "-m", *arguments], cwd=ROOT, preexec_fn=limit
  )
  try:
    yield process.pid
  finally:
    process.terminate()
    try:
      process.wait(timeout=30)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait(timeout=30)


def _cpu_s(process: int) -> float:
  fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
  user, system = fields.split()[11:13]
  return (int(user) + int(system)) / _TICKS


def _resident_kib(process: int) -> int:
  status = pathlib.Path(f"/proc/{process}/status").read_text()
  return int(status.partition("VmRSS:")[2].split()[0])


def _wait_until(ready: Callable[[], bool], what: str) -> None:
  end = time.monotonic() + READY_S
  while time.monotonic() < end:
    with contextlib.suppress(OSError, ValueError, KeyError):
      if ready():
        return
    time.sleep(0.1)
  sys.exit(f"{what} was not ready after {READY_S:.0f} s")


def _get(url: str) -> Any:
  with urllib.request.urlopen(url, timeout=5) as answer:
    return json.load(answer)


def _free_port() -> int:
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return int(found.getsockname()[1])


@contextlib.contextmanager
def _controller(worker: str, open_files: int, places: int) -> Iterator[Any]:
  """Runs a controller and its worker; yields process and URL."""
  http, grpc, own = _free_port(), _free_port(), _free_port()
  url = f"http://127.0.0.1:{http}/api"
  controller = ["agentrl_jax.service.controller", f"--port={http}"]
  controller += [f"--grpc-port={grpc}", f"--max-waiting={places}"]
  called = f"grpc://127.0.0.1:{grpc}" if worker == "grpc" else url
  hosted = [
    "agentrl_jax.service.worker",
    "--environment=bench.controller.__main__:TakesTurns",
  ]
  hosted += [f"--port={own}", f"--concurrency={places}"]
  hosted += [f"--controller={called}"]
  with (
    _process(controller, open_files) as process,
    _process(hosted, open_files),
  ):
    _wait_until(
      lambda: bool(_get(f"{url}/list_workers")[TakesTurns.name]["workers"]),
      "the worker",
    )
    yield process, url


@contextlib.contextmanager
def _floor(open_files: int) -> Iterator[Any]:
  """Runs a relay and the server behind it; yields process and URL."""
  behind, port = _free_port(), _free_port()
  own = ["bench.controller", "--answers", f"--port={behind}"]
  relay = ["bench.controller", f"--relay=http://127.0.0.1:{behind}"]
  with (
    _process(own, open_files),
    _process([*relay, f"--port={port}"], open_files) as process,
  ):
    url = f"http://127.0.0.1:{port}/api"
    _wait_until(lambda: _get(f"{url}/ready") is not None, "the relay")
    yield process, url


def _run(
  row: str, worker: str, open_files: int, options: Any
) -> dict[str, Any]:
  sessions = STEADY_SESSIONS if row == "steady" else options.sessions
  turns = STEADY_TURNS if row == "steady" else options.turns
  found: dict[str, Any] = {
    "row": row,
    "worker": worker,
    "sessions": sessions,
    "turns": 0 if row == "burst" else turns,
    "open_files": open_files,
  }
  per_request: dict[str, float] = {}
  latencies: dict[str, tuple[float, float]] = {}
  for place, running in (
    ("controller", _controller(worker, open_files, sessions)),
    ("relay", _floor(open_files)),
  ):
    with running as (process, url):
      cpu, memory = _cpu_s(process), _resident_kib(process)
      measured = asyncio.run(_measure(row, url, sessions, turns))
      answered = max(measured.num_requests, 1)
      per_request[place] = 1e6 * (_cpu_s(process) - cpu) / answered
      latencies[place] = tuple(map(measured.quantile_ms, (0.5, 0.99)))
      if place == "controller":
        found["seconds"] = round(measured.seconds, 1)
        found["errors"] = dict(measured.errors.most_common(5))
        grown = _resident_kib(process) - memory
        found["kib"] = round(grown / sessions, 1)
      elif measured.errors:
        sys.exit(f"the relay failed: {measured.errors.most_common(3)}")
  found["cpu_us"] = {name: round(us) for name, us in per_request.items()}
  found["of_floor"] = round(per_request["relay"] / per_request["controller"], 2)
  found["p50_p99_ms"] = latencies
  found["added_p50_p99_ms"] = [
    round(a - b, 2)
    for a, b in zip(latencies["controller"], latencies["relay"], strict=True)
  ]
  return found


async def _serve(port: int, answer: Callable[[web.Request], Any]) -> None:
  app = web.Application()
  app.router.add_route("*", "/{path:.*}", answer)
  runner = web.AppRunner(app, access_log=None)
  await runner.setup()
  await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
  spare_collections()  # as the controller does
  await asyncio.Event().wait()


async def _answer(request: web.Request) -> web.Response:
  """Answers with as many bytes as a worker's report has."""
  await request.read()
  report = {"finish": False, "reward": 0.0, "status": "running", "metric": {}}
  report["messages"] = [{"role": "user", "content": _TEXT}]
  return web.json_response({"session_id": "0" * 32, "env_out": report})


async def _relay(port: int, behind: str) -> None:
  """Gives each request's body on, and its answer back."""
  connector = aiohttp.TCPConnector(limit=_RELAYED)
  async with aiohttp.ClientSession(connector=connector) as http:

    async def give_on(request: web.Request) -> web.Response:
      body = await request.read()
      async with http.post(behind + request.path, data=body) as answer:
        return web.Response(
          body=await answer.read(), content_type="application/json"
        )

    await _serve(port, give_on)


def _raise_file_limit() -> None:
  hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
  resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
  """Measures the rows that are named, or all, or serves as the floor."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("rows", nargs="*", choices=[[], *ROWS])
  parser.add_argument("--sessions", type=int, default=1000)
  parser.add_argument("--turns", type=int, default=20)
  parser.add_argument("--worker", default="http,grpc")
  parser.add_argument("--open_files", type=int, default=1024)
  for name in ("--answers", "--relay", "--port"):  # of its own processes
    kind = {"action": "store_true"} if name == "--answers" else {}
    parser.add_argument(name, help=argparse.SUPPRESS, **kind)
  options = parser.parse_args()
  _raise_file_limit()
  if options.answers:
    asyncio.run(_serve(int(options.port), _answer))
  if options.relay:
    asyncio.run(_relay(int(options.port), options.relay))
  for row in options.rows or ROWS:
    for worker in options.worker.split(","):
      found = _run(row, worker, options.open_files, options)
      sys.stdout.write(json.dumps(found, indent=2) + "\n")
      sys.stdout.flush()


if __name__ == "__main__":
  main()
