r"""Kills the processes around a real training run, at random.

  python -m tests.launch.run.chaos --minutes=15

Beside the learner run a controller, workers over HTTP and gRPC, rollout servers
and, where there are an engine and the image `agentrl_jax/arithmetic`,
containers. Each period, each of them is killed with a probability and started
again later; a kind that chance spares is killed once in the last third. What is
wrong is printed, and the exit status is then 1:

- a group is trained on twice, or is nowhere at the end;
- the learner ends or makes no update for too long, or a wait is longer than its
  deadline;
- sessions or containers are left, or the files or the memory of a process grow.
"""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import docker
import docker.errors

from agentrl_jax.service.docker.orphans import OWNER_LABEL
from launch.run.traces import FILE as TRACES
from tests import programs
from tests.launch.processes.learners import ledger_of, metrics_of, position_of
from tests.launch.run import chaos_config
from tests.launch.serving.rollout_servers import Server
from tests.service import processes
from tests.service.processes import Process, ServiceProcess

IMAGE = "agentrl_jax/arithmetic"
CONFIG = chaos_config.get_config()
NUM_TASKS = 1 << 20  # as Arithmetic has by default
START_S = 900.0  # of a run, until its first updates
END_S = 420.0  # for what clients have left: sessions expire after 300 s
LATE_S = 10.0  # of a deadline's handling on a busy machine
MORE_FILES, MORE_MIB = 20, 100  # than in the first half; above, it is a leak
# What each span of a trace may take, by the first word of its name.
DEADLINES = {
  "group": CONFIG.group.deadline_s,
  "chat": CONFIG.waits.answer_timeout_s,
  "environment": CONFIG.waits.reply_timeout_s,
  "open": CONFIG.waits.session_timeout_s,
}


@dataclasses.dataclass
class Victim:
  """A process that is killed, and started again after `down_s`."""

  name: str
  start: Callable[[], Any]
  down_s: float = 3.0
  process: Any = None  # with `kill`; None while it is away
  back_at: float = 0.0
  num_kills: int = 0

  @property
  def kind(self):
    return self.name.partition(" ")[0]

  def come_back(self):
    self.process = self.start()

  def die(self, now):
    self.process.kill()
    self.num_kills += 1
    self.process, self.back_at = None, now + self.down_s

  @property
  def pid(self):
    """Its process, unless it is away or has none of its own."""
    process = self.process
    if isinstance(process, Server):
      return process.process.pid
    return process.pid if isinstance(process, Process) else None


class Containers:
  """Stands for all containers of the run: one of them is killed at a time."""

  def __init__(self, engine, chance):
    self._engine, self._chance = engine, chance

  def list(self):
    return self._engine.containers.list(
      filters={"label": OWNER_LABEL, "ancestor": IMAGE}, ignore_removed=True
    )

  def kill(self):
    if running := self.list():
      with contextlib.suppress(docker.errors.APIError):  # it has just gone
        self._chance.choice(running).kill()


class Chaos:
  """One run, with everything around it."""

  def __init__(self, folder, *, seed, period_s, share, away_s, say):
    self.folder, self.say = pathlib.Path(folder), say
    self.root = self.folder / CONFIG.name
    self.chance = random.Random(seed)
    self.period_s, self.share = period_s, share
    self.controller = ServiceProcess()
    self.engine = engine_with_image()
    self.containers = Containers(self.engine, self.chance)
    self.victims = [
      Victim(
        "controller", lambda: self.controller.start().process, down_s=away_s
      ),
      *(self.worker(n, self.controller.url) for n in (0, 1)),
      self.worker(2, self.controller.grpc),
      *(self.server(n) for n in (0, 1)),
    ]
    if self.engine is not None:
      self.victims.append(Victim("container", lambda: self.containers, 0))
    self.learner = None
    self.samples = collections.defaultdict(list)  # by process: files and MiB
    self.faults = []

  def worker(self, n, address):
    arguments = processes.our_worker(
      address, "--concurrency=8", num_tasks=NUM_TASKS
    )
    return Victim(f"worker {n}", lambda: Process(*arguments))

  def server(self, n):
    port = processes.free_port()
    return Victim(f"server {n}", lambda: Server(self.folder, port=port))

  @property
  def num_updates(self):
    return len(ledger_of(self.root))

  def said(self):
    return (self.folder / "learner.log").read_text()[-3000:]

  def fault(self, what):
    self.faults.append(what)
    self.say(f"WRONG: {what}")

  def start(self):
    """Starts everybody, and waits for the first updates."""
    self.folder.mkdir(parents=True, exist_ok=True)
    for victim in self.victims:
      victim.come_back()
    with (self.folder / "learner.log").open("w") as log:
      self.learner = subprocess.Popen(
        [
          sys.executable,
          "-m",
          "launch.train",
          f"--config={chaos_config.__file__}",
          *(f"--config.{key}={value}" for key, value in self.keys().items()),
        ],
        cwd=programs.ROOT,
        stdout=log,
        stderr=subprocess.STDOUT,
      )
    end = time.monotonic() + START_S
    while self.num_updates < 5:
      if self.learner.poll() is not None or time.monotonic() > end:
        raise AssertionError(f"the run does not start: {self.said()}")
      time.sleep(0.5)

  def keys(self):
    """The keys of the config that say where everybody is."""
    servers = [v.process.address for v in self.victims if v.kind == "server"]
    keys = {
      "workdir": self.folder,
      "tasks.names": ("arithmetic",),
      "rollouts.servers": ",".join(servers),
      "environments.arithmetic.place.controller": self.controller.url,
    }
    if self.engine is not None:
      keys["tasks.names"] = ("arithmetic", "boxed")
      keys["environments.boxed.place.containers"] = 2
      keys["environments.boxed.place.image"] = IMAGE
    return keys

  def rage(self, seconds):
    """Kills for so many seconds."""
    begin = time.monotonic()
    draw_at, num_updates, updated_at = begin, self.num_updates, begin
    while (now := time.monotonic()) < begin + seconds:
      if self.learner.poll() is not None:
        raise AssertionError(f"the learner ended: {self.said()}")
      for victim in self.victims:
        if victim.process is None and now >= victim.back_at:
          victim.come_back()
      if now >= draw_at:
        draw_at += self.period_s
        self.draw(now, is_late=now > begin + seconds * 2 / 3)
        self.sample()
        kills = {v.name: v.num_kills for v in self.victims}
        self.say(f"{now - begin:.0f} s: {num_updates} updates, kills {kills}")
      if self.num_updates > num_updates:
        num_updates, updated_at = self.num_updates, now
      elif now > updated_at + CONFIG.group.deadline_s + LATE_S:
        raise AssertionError(
          f"no update for {now - updated_at:.0f} s: {self.said()}"
        )
      time.sleep(0.5)

  def draw(self, now, *, is_late):
    """Kills those whose turn it is."""
    killed = collections.Counter()
    for victim in self.victims:
      killed[victim.kind] += victim.num_kills
    for victim in self.victims:
      is_spared = is_late and not killed[victim.kind]
      is_drawn = self.chance.random() < self.share
      if victim.process is not None and (is_drawn or is_spared):
        killed[victim.kind] += 1
        victim.die(now)

  def sample(self):
    """Notes the open files and the memory of those who live."""
    pids = {f"{v.name}, start {v.num_kills}": v.pid for v in self.victims}
    for name, pid in {"learner": self.learner.pid, **pids}.items():
      with contextlib.suppress(OSError):  # it has just ended
        files = len(os.listdir(f"/proc/{pid}/fd"))
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        self.samples[name].append((files, pages * 4 / 1024))

  def end(self):
    """Ends the run, looks at what it leaves, and ends everybody else."""
    for victim in self.victims:
      if victim.process is None:
        victim.come_back()
    self.learner.send_signal(signal.SIGINT)
    try:
      self.learner.wait(120)
    except subprocess.TimeoutExpired:
      self.fault(f"the learner does not end: {self.said()}")
      self.learner.kill()
    self.check_groups()
    self.check_waits()
    self.check_growth()
    self.check_rests()
    for victim in self.victims:
      if isinstance(victim.process, Server):
        victim.process.end(signal.SIGTERM)
      elif isinstance(victim.process, Process):
        victim.process.stop()

  def check_groups(self):
    """Every group that was drawn is trained on once, kept, or counted."""
    entries = ledger_of(self.root)
    trained = collections.Counter(g for e in entries for g in e["groups"])
    twice = [group for group, n in trained.items() if n > 1]
    if twice:
      self.fault(f"trained on twice: {twice[:5]}")
    versions = [entry["version"] for entry in entries]
    if versions != list(range(len(versions))):
      self.fault(f"updates are missing, or come twice: {versions[-5:]}")
    steps = (p.name for p in (self.root / "rl").iterdir())
    newest = max(int(step) for step in steps if step.isdecimal())
    state = position_of(self.root, newest)["controller"]
    kept = {f"{n:08d}" for n, _ in state["in_flight"]}
    kept |= {group["id"] for group in state["queued"]}
    drawn = {f"{n:08d}" for n in range(state["stream"]["position"])}
    dropped = {
      name.removeprefix("groups/dropped/"): int(number)
      for name, number in metrics_of(self.root)[-1].items()
      if number and re.fullmatch(r"groups/dropped/\w+/\w+", name)
    }
    self.say(
      f"groups: {len(drawn)} drawn, {len(trained)} trained on, {len(kept)} "
      f"kept for a resume, dropped {dropped}"
    )
    lost = drawn - trained.keys() - kept
    if len(lost) != sum(dropped.values()):
      self.fault(f"{len(lost)} groups are nowhere: {sorted(lost)[:9]}")

  def check_waits(self):
    """No group, answer or reply took longer than its deadline."""
    longest = collections.Counter()
    for line in (self.root / TRACES).read_text().splitlines():
      span = json.loads(line)
      kind = span["name"].partition(" ")[0]
      longest[kind] = max(longest[kind], duration_s(span))
    self.say(f"longest, in seconds: {dict(longest)}")
    for kind, limit_s in DEADLINES.items():
      if not 0 < longest[kind] <= limit_s + LATE_S:
        self.fault(f"{kind} took {longest[kind]:.0f} s of {limit_s:.0f} s")

  def check_growth(self):
    for name, samples in self.samples.items():
      if len(samples) < 4:
        continue
      early, (late_files, late_mib) = samples[: len(samples) // 2], samples[-1]
      files, mib = max(n for n, _ in early), max(m for _, m in early)
      self.say(
        f"{name}: {late_files} files, {late_mib:.0f} MiB; in the first half "
        f"{files} and {mib:.0f}"
      )
      if late_files > files + MORE_FILES or late_mib > mib + MORE_MIB:
        self.fault(f"{name} grows")

  def check_rests(self):
    begin = time.monotonic()
    while rests := self.rests():
      if time.monotonic() > begin + END_S:
        self.fault(f"left behind: {rests}")
        return
      time.sleep(1)
    self.say(f"nothing is left {time.monotonic() - begin:.0f} s after the end")

  def rests(self):
    """Returns the sessions and containers that are still there."""
    found = [f"session {s}" for s in self.controller.get("list_sessions")]
    (task,) = self.controller.get("overview?name=arithmetic")["tasks"]
    for worker in task["workers"]:
      if worker["address"].startswith("http") and worker["health"] == "alive":
        address = f"{worker['address']}/get_sessions"
        with urllib.request.urlopen(address, timeout=10) as reply:
          found += [f"{worker['address']} has {s}" for s in json.load(reply)]
    if self.engine is not None:
      found += [container.name for container in self.containers.list()]
    return found

  def close(self):
    """Kills whoever is left."""
    if self.learner is not None and self.learner.poll() is None:
      self.learner.kill()
      self.learner.wait()
    for victim in self.victims:
      process = victim.process
      if isinstance(process, Server) or (
        isinstance(process, Process) and process.is_running
      ):
        process.kill()


def duration_s(span):
  """Returns the seconds of a span in OpenTelemetry's JSON."""
  read = datetime.datetime.fromisoformat
  return (read(span["end_time"]) - read(span["start_time"])).total_seconds()


def engine_with_image():
  """Returns a Docker engine that has the image; None if there is none."""
  try:
    engine = docker.from_env()
    engine.images.get(IMAGE)
  except docker.errors.DockerException:
    return None
  return engine


def survive(folder, *, minutes, say, **how):
  """Makes a run of so many minutes; returns what was wrong, and the kills."""
  chaos = Chaos(folder, say=say, **how)
  try:
    chaos.start()
    chaos.rage(minutes * 60)
    chaos.end()
  finally:
    chaos.close()
  kills = collections.Counter()
  for victim in chaos.victims:
    kills[victim.kind] += victim.num_kills
  say(f"{chaos.num_updates} updates, kills {dict(kills)}")
  return chaos.faults, kills


def say(text):
  sys.stdout.write(f"{text}\n")
  sys.stdout.flush()


def main():
  parser = argparse.ArgumentParser(prog="python -m tests.launch.run.chaos")
  parser.add_argument("--minutes", type=float, default=15)
  parser.add_argument("--period_s", type=float, default=60)
  parser.add_argument("--share", type=float, default=0.05, help="of a period")
  parser.add_argument(
    "--away_s", type=float, default=60, help="of the controller, after a kill"
  )
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--folder", help="to keep; one that is removed, if none")
  given = vars(parser.parse_args())
  folder = given.pop("folder")
  with contextlib.ExitStack() as stack:
    faults, _ = survive(
      folder or stack.enter_context(tempfile.TemporaryDirectory()),
      say=say,
      **given,
    )
  sys.exit(1 if faults else 0)


if __name__ == "__main__":
  main()
