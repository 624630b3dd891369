r"""Rehearses a run on a pod: every role, and SIGKILL for one of them at a time.

  python -m tests.launch.tpu.rehearsal --minutes=30 --kill_every_s=120 --seed=0

`launch/tpu_run.sh --local` starts two learner processes of four devices, which
count as two slices, two rollout servers with three versions, a controller and
three hosts of environments, each with a worker process and a worker in a
container: a Docker engine and the image of dbbench are needed. Roles are killed
in shuffled rounds, so that each is hit as often as any other. After `--minutes`
the run is interrupted, unless it has reached its last update before; then it
must have saved, its ledger must be complete, and nothing of it may be left on
the machine. Prints each check, and exits with 1 if one fails.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

from agentrl_jax.metrics import read_metrics
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import START, read_faults
from launch.processes.terminal import plain_console
from tests.launch.processes.learners import ledger_of, metrics_of, position_of
from tests.launch.tpu.roles import Role, containers

ROOT = pathlib.Path(__file__).parents[3]
CONFIG = "tests/launch/tpu/rehearsed.py"
ENVIRONMENTS = ("dbbench", "arithmetic")
# A process that starts again compiles again, on cores that all roles share.
XLA_FLAGS = (
  "--xla_force_host_platform_device_count=4",
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
)
NUM_HOSTS = 3  # of environments
MARK = "AGENTRL_REHEARSAL"  # in the environment of every process of the run
START_S = 1500.0  # until the first update
RESTART_S = 600.0  # until a killed role has a process again
END_S = 600.0  # for a run that was interrupted, or has made all updates
CLOSE_S = 180.0  # for a launcher that is told to end early
WATCHERS_S = 20.0  # for what watches over containers to see that they are gone
POLL_S = 0.5
CONSOLE = plain_console(soft_wrap=True)
TEXT_S = 30.0  # between lines of progress


@dataclasses.dataclass(frozen=True)
class Kill:
  """A SIGKILL: its time, the role, and the number of updates made by then.

  `is_noticed`: the page must show the loss. A learner process must have been
  back since the last such loss, or the learner starts once after both; for the
  other roles, the learner must have made an update since, so it knew the role.
  """

  time_s: float  # since 1970
  role: Role
  updates: int
  is_noticed: bool


@dataclasses.dataclass(frozen=True)
class Check:
  """A claim about the run's end, and what was found."""

  claim: str
  holds: bool
  found: str


class Rehearsal:
  """One run in a folder: its processes, kills and checks."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    updates: int,
    seed: int,
    after: pathlib.Path | None = None,
  ):
    """`after` is the folder of a run, whose stages before RL are taken over."""
    self.folder, self._updates = folder, updates
    self.name = f"rehearsal-{uuid.uuid4().hex[:8]}"
    self.root = folder / "hosts" / "runs" / self.name
    self.kills: list[Kill] = []
    self._mark = uuid.uuid4().hex
    self._draw = random.Random(seed)
    self._round: list[Role] = []
    self._shared = set(os.listdir("/dev/shm"))
    self._containers = set(containers())
    self._ports = _free_ports()
    self._out, self._told = folder / "out", folder / "told"
    if after:
      _copy_before_rl(after, self.root)
    self._scratch = folder / "scratch"
    self._scratch.mkdir()
    for path in (self._out, self._told):
      path.touch()
    self._begun_at = time.monotonic()
    self._text_at = 0.0
    self._process: subprocess.Popen[bytes] | None = None

  @property
  def mark(self) -> dict[str, str]:
    """Returns the variable that every process of the run has."""
    return {MARK: self._mark}

  def start(self) -> None:
    """Starts the launcher, which starts everything else."""
    with self._out.open("wb") as out, self._told.open("wb") as told:
      self._process = subprocess.Popen(
        [
          ROOT / "launch" / "tpu_run.sh",
          f"--name={self.name}",
          "--local=2",
          "--rollout=2",
          f"--environments={NUM_HOSTS}:{','.join(ENVIRONMENTS)}",
          f"--local-folder={self.folder}/hosts",
          "--poll=1",
          "--peers=60",
          "--restarts=1000",
          "--grace=240",
          f"--python={sys.executable}",
          "--env=JAX_PLATFORMS=cpu",
          f"--env=XLA_FLAGS={' '.join(XLA_FLAGS)}",
          "--",
          f"--config={CONFIG}",
          f"--config.train.steps={self._updates}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=told,
        env={
          **os.environ,
          **self.mark,
          "TMPDIR": str(self._scratch),
          "AGENTRL_PAUSE_S": "1",
          "AGENTRL_ROLLOUT_PORT": str(self._ports[0]),
          "AGENTRL_CONTROLLER_PORT": str(self._ports[2]),
        },
      )

  # --- While it runs ----------------------------------------------------------

  def roles(self) -> list[Role]:
    """Returns every process that may be killed."""

    def role(name: str, kind: str, place: str, home: str, index: int = 0):
      host = self.folder / "hosts" / f"{self.name}-{home}" / str(index)
      child = host / "agentrl" / "places" / place / "child"
      return Role(name, kind, child)

    return [
      role("learner/0", "learner", "learner", "learner"),
      role("learner/1", "learner", "learner", "learner", 1),
      *(
        role(f"rollout-{i}", "rollout server", f"rollout-{i}", f"rollout-{i}")
        for i in range(2)
      ),
      role("controller", "controller", "controller", "learner"),
      *(
        role(f"{kind} of {name}", kind, name, name)
        for name in (f"environments-{i}" for i in range(NUM_HOSTS))
        for kind in ("worker", "container")
      ),
      role(
        "environments-0", "host of workers", "environments-0", "environments-0"
      ),
    ]

  @property
  def is_running(self) -> bool:
    """True until the launcher has ended."""
    return self._process is not None and self._process.poll() is None

  @property
  def updates(self) -> int:
    """Returns the number of updates in the run's record."""
    return len(ledger_of(self.root))

  def kill_one(self) -> None:
    """Kills the next role of the round, once it has a process."""
    if not self._round:
      self._round = self.roles()
      self._draw.shuffle(self._round)
    role = self._round.pop()
    deadline = time.monotonic() + RESTART_S
    while not (pid := role.pid()):
      if not self.is_running:
        return
      if time.monotonic() > deadline:
        raise AssertionError(
          f"{role.name} has had no process for {RESTART_S:g} s:{self.said()}"
        )
      time.sleep(POLL_S)
    is_noticed = (
      self._has_started() if role.kind == "learner" else self.is_learning()
    )
    kill = Kill(time.time(), role, self.updates, is_noticed)
    os.kill(pid, signal.SIGKILL)
    self.kills.append(kill)
    while_what = "" if kill.is_noticed else ", while the learner starts"
    self.say(f"kill {len(self.kills)}: {role.name}{while_what}")

  def _lost_at(self) -> float:
    """Returns when the learner was lost last."""
    learners = [kill for kill in self.kills if kill.role.kind == "learner"]
    return max([kill.time_s for kill in learners], default=0.0)

  def _has_started(self) -> bool:
    """True if the learner has recorded a start since it was lost last."""
    lost_at = self._lost_at()
    starts = [f for f in read_faults(self.root / FAULTS) if f.kind == START]
    return not lost_at or any(start.time_s > lost_at for start in starts)

  def is_learning(self) -> bool:
    """True if the learner has made an update since it was lost last."""
    lost_at = self._lost_at()
    rows = read_metrics(self.root / "metrics.jsonl")
    return any(row.stage == "rl" and row.time_s > lost_at for row in rows)

  def wait(self, seconds: float, until=lambda: False) -> bool:
    """Waits, with lines of progress; True if `until()` or the end came."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
      if until() or not self.is_running:
        return True
      if time.monotonic() > self._text_at:
        self.say("runs")
      time.sleep(POLL_S)
    return False

  def interrupt(self) -> None:
    """Asks the launcher to let all processes save and end."""
    if self._process and self.is_running:
      self._process.send_signal(signal.SIGINT)

  def end(self) -> int:
    """Waits for the launcher's end; returns its status."""
    self.wait(END_S)
    status = self._process.poll() if self._process else None
    if status is None:
      raise AssertionError(f"did not end within {END_S:g} s:{self.said()}")
    return status

  def close(self) -> None:
    """Ends what an interrupted rehearsal has left."""
    if self._process and self.is_running:
      self._process.terminate()
      try:
        self._process.wait(CLOSE_S)
      except subprocess.TimeoutExpired:
        self._process.kill()
    for pid in self.left():
      os.kill(pid, signal.SIGKILL)

  @property
  def spent_s(self) -> float:
    """Returns the seconds since the start."""
    return time.monotonic() - self._begun_at

  def say(self, text: str) -> None:
    """Prints a line of progress."""
    self._text_at = time.monotonic() + TEXT_S
    CONSOLE.print(f"{self.spent_s:6.0f} s  update {self.updates:3d}  {text}")

  def said(self) -> str:
    """Returns the end of the run's own output."""
    return "".join(
      f"\n--- {path.name}\n{path.read_text(errors='replace')[-6000:]}"
      for path in (self._out, self._told)
    )

  # --- Afterwards -------------------------------------------------------------

  def left(self) -> list[int]:
    """Returns the run's processes that still exist."""
    mark = f"{MARK}={self._mark}".encode()
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
      try:
        words = (folder / "environ").read_bytes().split(b"\0")
      except (FileNotFoundError, ProcessLookupError, PermissionError):
        continue
      if mark in words:
        found.append(int(folder.name))
    return found

  def checks(self, status: int) -> Iterator[Check]:
    """Yields what must hold once the run has ended."""
    updates, told = self.updates, self._told.read_text(errors="replace")
    if updates == self._updates:
      yield Check("status 0 after the last update", status == 0, str(status))
    else:
      saved = status == 130 and "goes on where this one stopped" in told
      yield Check("interrupted, status 130", saved, str(status))
    yield from self._ledger()
    self._wait_for_watchers()
    left = [f"{pid} {_command(pid)}" for pid in self.left()]
    yield Check("no process is left", not left, "; ".join(left) or "none")
    left = sorted(set(containers()) - self._containers)
    yield Check("no container is left", not left, ", ".join(left) or "none")
    open_ports = [port for port in self._all_ports() if _is_open(port)]
    yield Check("ports are closed", not open_ports, f"open: {open_ports}")
    shared = sorted(set(os.listdir("/dev/shm")) - self._shared)
    shared = [name for name in shared if not _is_in_use(f"/dev/shm/{name}")]
    yield Check("nothing is left in /dev/shm", not shared, f"new: {shared}")
    scratch = sorted(path.name for path in self._scratch.iterdir())
    yield Check("no temporary file is left", not scratch, f"left: {scratch}")
    yield from self._page()

  def _wait_for_watchers(self) -> None:
    """Waits for the processes that look for orphaned containers.

    They end soon after the owner of the containers.
    """
    deadline = time.monotonic() + WATCHERS_S
    while self.left() and time.monotonic() < deadline:
      time.sleep(POLL_S)

  def _ledger(self) -> Iterator[Check]:
    """Compares the record of groups, checkpoint, metrics and trajectories."""
    ledger = ledger_of(self.root)
    versions = [entry["version"] for entry in ledger]
    count = len(versions)
    yield Check(
      "the record has every update once, and some",
      bool(ledger) and versions == list(range(count)),
      f"{count} updates",
    )
    groups = [int(group) for entry in ledger for group in entry["groups"]]
    twice = [group for group, n in Counter(groups).items() if n > 1]
    yield Check(
      "no group is trained on twice",
      not twice,
      f"{len(groups)} groups, twice: {twice}",
    )
    sizes = Counter(len(entry["groups"]) for entry in ledger)
    yield Check("every update has 2 groups", set(sizes) == {2}, f"{sizes}")
    saved = max(
      (int(p.name) for p in (self.root / "rl").glob("*") if p.name.isdigit()),
      default=-1,
    )
    yield Check(
      "the last checkpoint is the last update",
      saved == count,
      f"checkpoint {saved}, {count} updates",
    )
    rows = len(metrics_of(self.root))
    yield Check(
      "metrics have a row per update", rows == count, f"{rows} of {count}"
    )
    # Files of lost updates stay until the same version is trained again.
    folder = self.root / "trajectories"
    lacking = [
      version
      for version in versions
      if not (folder / f"{version:06d}.jsonl.gz").exists()
    ]
    yield Check(
      "trajectories have a file per update", not lacking, f"without: {lacking}"
    )
    if saved >= 0:
      yield from self._started(groups, saved)

  def _started(self, trained: Sequence[int], step: int) -> Iterator[Check]:
    position = position_of(self.root, step)["controller"]
    queued = [int(group["id"]) for group in position["queued"]]
    in_flight = [number for number, _ in position["in_flight"]]
    every = [*trained, *queued, *in_flight]
    started = position["stream"]["position"]
    dropped = set(range(started)) - set(every)
    yield Check(
      "every group that was started is in one place at most",
      len(every) == len(set(every)) and set(every) <= set(range(started)),
      f"{started} started: {len(trained)} trained, {len(queued)} queued, "
      f"{len(in_flight)} in flight, {len(dropped)} dropped",
    )

  def _page(self) -> Iterator[Check]:
    """Looks for the faults on the run's page."""
    path = self.root / "report.html"
    page = path.read_text() if path.exists() else ""
    yield Check("the report is there", bool(page), f"{len(page)} characters")
    kinds = Counter(kill.role.kind for kill in self.kills if kill.is_noticed)
    starts = page.count('class="fault start"')
    yield Check(
      "the page shows each loss of a learner process",
      starts >= kinds["learner"],
      f"{starts} starts again, {kinds['learner']} kills",
    )
    lost = sum(
      int(n) for n in re.findall(r">(\d+) rollout servers? lost", page)
    )
    yield Check(
      "the page shows each lost rollout server",
      lost >= kinds["rollout server"],
      f"{lost} lost, {kinds['rollout server']} kills",
    )
    broken = re.findall(r">(\d+) episodes? of (\w+) broken", page)
    yield Check(
      "the page shows the episodes that lost their controller",
      len(broken) >= kinds["controller"],
      f"{sum(int(n) for n, _ in broken)} episodes in {len(broken)} rows, "
      f"{kinds['controller']} kills of the controller, "
      f"{kinds['worker'] + kinds['container'] + kinds['host of workers']} of "
      "workers, containers and their host",
    )

  def _all_ports(self) -> list[int]:
    first = re.findall(r"127\.0\.0\.1:(\d+)", self._out.read_text("utf-8"))
    return sorted({*self._ports, *map(int, first)})

  def summary(self) -> str:
    """Returns the numbers of the rehearsal, for people."""
    rows = metrics_of(self.root)
    told = self._told.read_text(errors="replace")
    return json.dumps(
      {
        "seconds": round(self.spent_s),
        "kills": Counter(kill.role.name for kill in self.kills),
        "kills while the learner started": sum(
          not kill.is_noticed for kill in self.kills
        ),
        "updates": self.updates,
        "groups": sum(len(e["groups"]) for e in ledger_of(self.root)),
        "learner restarts": len(re.findall(r"\(restart \d+ of", told)),
        "last row": {
          name: value
          for name, value in (rows[-1] if rows else {}).items()
          if name.startswith(
            ("rollouts/", "rollout/retried", "rollout/fault", "groups/")
          )
        },
      },
      indent=2,
    )


def _copy_before_rl(run: pathlib.Path, to: pathlib.Path) -> None:
  """Copies a run without its reinforcement learning."""
  later = (
    "rl",
    "rl.*",
    "snapshots",
    "*.jsonl",
    "*.yaml",
    "lock",
    "report.*",
    "summary.*",
  )
  shutil.copytree(run, to, ignore=shutil.ignore_patterns(*later, "rl_*"))


def _free_ports() -> list[int]:
  """Returns two free pairs of ports that follow each other."""
  pairs: list[int] = []
  while len(pairs) < 4:
    with socket.socket() as one, socket.socket() as two:
      one.bind(("127.0.0.1", 0))
      port = one.getsockname()[1]
      try:
        two.bind(("127.0.0.1", port + 1))
      except (OSError, OverflowError):
        continue
      if port not in pairs:
        pairs += [port, port + 1]
  return pairs


def _is_open(port: int) -> bool:
  with socket.socket() as probe:
    probe.settimeout(1.0)
    return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_in_use(path: str) -> bool:
  """True if a living process, which is of another run, has the file open."""
  for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
    try:
      if path in maps.read_text(errors="replace"):
        return True
    except (FileNotFoundError, ProcessLookupError, PermissionError):
      continue
  return False


def _command(pid: int) -> str:
  try:
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
  except (FileNotFoundError, ProcessLookupError):
    return "(gone)"
  return b" ".join(words).decode(errors="replace")[:120]


def rehearse(
  folder: pathlib.Path,
  *,
  minutes: float,
  kill_every_s: float,
  updates: int,
  seed: int,
  most_kills: int = 1000,
  after: pathlib.Path | None = None,
) -> list[Check]:
  """Runs, kills and checks; returns all checks."""
  rehearsal = Rehearsal(folder, updates=updates, seed=seed, after=after)
  rehearsal.start()
  try:
    if not rehearsal.wait(START_S, lambda: rehearsal.updates > 0):
      raise AssertionError(f"no update within {START_S:g} s:{rehearsal.said()}")
    rehearsal.say("the first update is made; the kills begin")
    until = time.monotonic() + 60 * minutes
    at_last = updates - 1  # evaluation follows the last update
    while (
      time.monotonic() + kill_every_s <= until
      and len(rehearsal.kills) < most_kills
    ):
      if rehearsal.wait(kill_every_s, lambda: rehearsal.updates >= at_last):
        break
      rehearsal.kill_one()
    left_s = until - time.monotonic()
    if not rehearsal.wait(left_s, lambda: rehearsal.updates >= updates):
      rehearsal.say("time is up")
      rehearsal.wait(START_S, rehearsal.is_learning)
      rehearsal.say("interrupted")
      rehearsal.interrupt()
    status = rehearsal.end()
    rehearsal.say(f"ended with status {status}")
    checks = list(rehearsal.checks(status))
    CONSOLE.print(rehearsal.summary())
    return checks
  finally:
    rehearsal.close()


def main(arguments: Sequence[str] | None = None) -> int:
  """Parses the command line and rehearses; 1 if a check fails."""
  parser = argparse.ArgumentParser(
    prog="python -m tests.launch.tpu.rehearsal",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("--minutes", type=float, default=30.0)
  parser.add_argument("--kill_every_s", type=float, default=120.0)
  parser.add_argument("--updates", type=int, default=100_000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--folder", help="kept; else a temporary one, removed")
  parser.add_argument(
    "--after",
    type=pathlib.Path,
    help="a run of this config, whose stages before RL are not done again",
  )
  given = parser.parse_args(arguments)
  with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
    folder = pathlib.Path(given.folder or temporary).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    checks = rehearse(
      folder,
      minutes=given.minutes,
      kill_every_s=given.kill_every_s,
      updates=given.updates,
      seed=given.seed,
      after=given.after,
    )
  for check in checks:
    CONSOLE.print(
      f"{'ok  ' if check.holds else 'FAIL'} {check.claim}: {check.found}"
    )
  return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
  sys.exit(main())
