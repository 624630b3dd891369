"""Time in which a server answers nobody during one request of the worst kind.

The server has its own process, with a policy so small that the host's work is
measured. One thread sends the hostile request; another requests `/ready` on a
connection that stays open, again and again, until the hostile request is
answered. The limit is 100 ms for the slowest of those replies; `idle` is the
same without a hostile request, on the same machine and in the same run.
"""

import asyncio
import gzip
import http.client
import json
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import numpy as np

from agentrl_jax.garbage import spare_collections
from bench.line_peer import Pythons
from tests.rollout import talking

LIMIT_MS = 100.0
IDLE_S, DEADLINE_S = 2.0, 120.0
DIVISORS = (720720, 100003, 999983, 524287, 720719, 831600, 942480, 982800)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Sends each request `pairs` times; returns the row as JSON values."""
  del pythons  # no peer has such a promise to compare with
  context = multiprocessing.get_context("spawn")
  ours, theirs = context.Pipe()
  server = context.Process(target=_serve, args=(theirs,), daemon=True)
  server.start()
  if not ours.poll(DEADLINE_S):
    raise TimeoutError(f"the server did not listen within {DEADLINE_S:g} s")
  port = ours.recv()
  _send(port, "/v1/chat/completions", _form({"type": "integer"}))  # warm
  found: dict[str, object] = {"limit_ms": LIMIT_MS, "idle": _idle(port)}
  for name, (path, body, headers) in _requests().items():
    found[name] = [_under(port, path, body, headers) for _ in range(pairs)]
  ours.send("end")
  server.join(DEADLINE_S)
  return found


def _serve(pipe: Connection) -> None:
  async def serve() -> None:
    async with talking.Talking() as served:
      spare_collections()  # as the commands do
      pipe.send(int(served.url.rpartition(":")[2]))
      await asyncio.to_thread(pipe.recv)

  asyncio.run(serve())


def _requests() -> dict[str, tuple[str, bytes, dict[str, str]]]:
  divisors = {f"a{n}": {"type": "integer", "multipleOf": n} for n in DIVISORS}
  options = {f"p{n}": {"type": "integer"} for n in range(5000)}
  chat = "/v1/chat/completions"
  prompt = {"model": talking.NAME, "prompt": "hello world " * 540_000}
  tool = {"name": "look", "description": "hello world " * 340_000}
  shown = {
    "model": talking.NAME,
    "messages": [{"role": "user", "content": "What?"}],
    "tools": [{"type": "function", "function": tool}],
  }
  zeros = gzip.compress(b" " * (1 << 30), 1)
  return {
    "eight_divisors": (chat, _form(_object(divisors, [*divisors])), {}),
    "five_thousand_options": (chat, _form(_object(options, [])), {}),
    "long_prompt": ("/v1/completions", json.dumps(prompt).encode(), {}),
    "long_tool": (chat, json.dumps(shown).encode(), {}),
    "deep_json": (chat, b"[" * 4_000_000, {}),
    "gzip_bomb": (chat, zeros, {"Content-Encoding": "gzip"}),
  }


def _object(
  properties: dict[str, object], required: list[str]
) -> dict[str, object]:
  return {
    "type": "object",
    "properties": properties,
    "required": required,
    "additionalProperties": False,
  }


def _form(schema: dict[str, object]) -> bytes:
  form = {"name": "n", "schema": schema}
  body = {
    "model": talking.NAME,
    "messages": [{"role": "user", "content": "What?"}],
    "response_format": {"type": "json_schema", "json_schema": form},
    "max_tokens": 2,
  }
  return json.dumps(body).encode()


def _send(
  port: int, path: str, body: bytes, headers: dict[str, str] | None = None
) -> int:
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
  json_type = {"Content-Type": "application/json"}
  try:
    connection.request("POST", path, body, json_type | (headers or {}))
    return connection.getresponse().status
  finally:
    connection.close()


def _under(
  port: int, path: str, body: bytes, headers: dict[str, str]
) -> dict[str, float]:
  """Measures the wait of others during a request, and its outcome."""
  status: list[int] = []
  ended = threading.Event()

  def attack() -> None:
    try:
      status.append(_send(port, path, body, headers))
    finally:
      ended.set()

  began = time.monotonic()
  attacker = threading.Thread(target=attack)
  attacker.start()
  times = _ready_times(port, ended.is_set)
  attacker.join()
  spent = time.monotonic() - began
  return {"status": status[0], "seconds": round(spent, 3)} | _told(times)


def _idle(port: int) -> dict[str, float]:
  until = time.monotonic() + IDLE_S
  return _told(_ready_times(port, lambda: time.monotonic() > until))


def _ready_times(port: int, is_over) -> list[float]:
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
  times = []
  try:
    while not is_over() or not times:
      began = time.perf_counter()
      connection.request("GET", "/ready")
      connection.getresponse().read()
      times.append(time.perf_counter() - began)
      time.sleep(0.002)
  finally:
    connection.close()
  return times


def _told(times: list[float]) -> dict[str, float]:
  in_ms = np.array(times) * 1e3
  return {
    "asked": len(times),
    "median_ms": round(float(np.median(in_ms)), 2),
    "slowest_ms": round(float(in_ms.max()), 2),
  }
