"""A batch on its way from process 0 to the other learner processes.

  python -m bench.learner.shared_batch --processes=4 --tokens=4000000

Encoding: bytes and tokens per second of `controller.groups.group_bytes`, beside
gzip of JSON with arrays in base64, the form that files of episodes have. The
way: seconds until every process has the batch, over the link, which sends it
once to each, and by way of the devices. The devices of one machine share its
memory: the seconds are not those of a network. Bytes are: the last lines are
what process 0 sends, by formula, with a ring of devices.
"""

import json
import os
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags

from agentrl_jax.controller.groups.group_bytes import (
  decode_groups,
  encode_groups,
)
from agentrl_jax.data.record_file import group_from_json, group_to_json
from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn
from launch.processes.group import (
  COORDINATOR,
  NUM_PROCESSES,
  PROCESS_ID,
  Processes,
  ProcessLimits,
  joined,
)

_PROCESSES = flags.DEFINE_integer("processes", 4, "learner processes", 2)
_TOKENS = flags.DEFINE_integer("tokens", 4_000_000, "tokens of the batch", 1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "of all ways in turn", 1)
OBSERVED, SAMPLED, TURNS, SIZE = 600, 200, 10, 8  # of a turn, attempt, group


def make_groups(num_tokens: int) -> list[Group]:
  """Makes groups of random tokens, of about so many together."""
  rng = np.random.default_rng(0)

  def turn() -> Turn:
    logprob = -rng.gamma(1, 0.3, SAMPLED).astype(np.float32)
    return Turn(
      observation=rng.integers(150_000, size=OBSERVED, dtype=np.int32),
      sampled=rng.integers(150_000, size=SAMPLED, dtype=np.int32),
      behavior_logprob=logprob,
      raw_logprob=logprob,
      version=np.full(SAMPLED, 7, np.int32),
    )

  def attempt(task: Task, number: int) -> Trajectory:
    return Trajectory(
      task=task,
      group_id=str(task.index),
      attempt=number,
      seed=0,
      turns=tuple(turn() for _ in range(TURNS)),
      status=Status.COMPLETED,
      reward=float(rng.random()),
    )

  def group(index: int) -> Group:
    task = Task("task", "train", index)
    members = tuple(attempt(task, n) for n in range(SIZE))
    return Group(str(index), task, members)

  of_group = (OBSERVED + SAMPLED) * TURNS * SIZE
  return [group(n) for n in range(max(num_tokens // of_group, 1))]


def compare_encodings(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
  """Measures both forms in turn; returns medians of the rounds."""
  ways: dict[str, tuple[Callable[..., bytes], Callable[[bytes], object]]] = {
    "bytes": (encode_groups, decode_groups),
    "json": (
      lambda found: zlib.compress(
        json.dumps([group_to_json(g) for g in found]).encode(), 1
      ),
      lambda value: [
        group_from_json(body) for body in json.loads(zlib.decompress(value))
      ],
    ),
  }
  tokens = sum(t.num_tokens for g in groups for t in g.trajectories)
  rows: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
  for _ in range(_ROUNDS.value):
    for name, (encode, decode) in ways.items():
      begun = time.perf_counter()
      value = encode(groups)
      between = time.perf_counter()
      decode(value)
      ended = time.perf_counter()
      rows[name].append((between - begun, ended - between, len(value)))
  return {
    name: {
      "bytes_per_token": found[0][2] / tokens,
      "encoded_tokens_per_second": tokens / np.median([x[0] for x in found]),
      "decoded_tokens_per_second": tokens / np.median([x[1] for x in found]),
    }
    for name, found in rows.items()
  }


def compare_ways(processes: Processes, value: bytes) -> dict[str, float]:
  """Returns median seconds until every process has the value, by way."""
  ways = {"link": processes.share, "devices": processes.broadcast}
  seconds: dict[str, list[float]] = {name: [] for name in ways}
  for number in range(_ROUNDS.value + 1):
    for name, way in ways.items():
      processes.broadcast(b"1", what="the start")
      begun = time.perf_counter()
      received = way(value, what="the batch")
      processes.broadcast(b"1", what="the end")
      if number:  # the first round compiles
        seconds[name].append(time.perf_counter() - begun)
      if not received:
        raise AssertionError("no batch came")
  return {name: float(np.median(found)) for name, found in seconds.items()}


def sent_by_process_0(size: int, counts: Sequence[int]) -> dict[str, object]:
  """Returns bytes by the number of processes: link, and a ring of devices."""
  return {
    str(count): {
      "link": size * (count - 1),
      "devices": 2 * size * (count - 1) // count,
    }
    for count in counts
  }


def main(_: Sequence[str]) -> None:
  """Starts the processes, of which the first measures and prints."""
  if NUM_PROCESSES not in os.environ:
    _start()
    return
  groups = make_groups(_TOKENS.value)
  with joined(ProcessLimits()) as processes:
    value = encode_groups(groups) if processes.leads else b""
    seconds = compare_ways(processes, value)
  if processes.leads:
    found = {
      "encodings": compare_encodings(groups),
      "seconds": seconds,
      "sent_by_process_0": sent_by_process_0(len(value), (4, 16, 64, 256)),
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _start() -> None:
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  running = [
    subprocess.Popen(
      [sys.executable, "-m", "bench.learner.shared_batch", *sys.argv[1:]],
      env=os.environ
      | {
        COORDINATOR: address,
        NUM_PROCESSES: str(_PROCESSES.value),
        PROCESS_ID: str(index),
      },
    )
    for index in range(_PROCESSES.value)
  ]
  if any([process.wait() for process in running]):
    raise SystemExit("a process failed; see above")


if __name__ == "__main__":
  app.run(main)
