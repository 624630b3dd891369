"""A cloud to run launch/tpu_run.sh against: see gcloud.py beside this."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from tests.clocks import wait_until

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]
SCRIPT = ROOT / "launch" / "tpu_run.sh"
ZONE = ("--zone=us-east5-a", "--project=p")
DEADLINE_S = 300.0


class Cloud:
  """Folders for hosts, a `gcloud` that plays a transcript, and its calls."""

  def __init__(self, folder: pathlib.Path, transcript: str):
    self.folder = folder
    self.saved = folder / "saved"
    binaries = folder / "bin"
    for path in (self.saved, binaries):
      path.mkdir(parents=True)
    (folder / "transcript").write_text(
      transcript
      if "\n" in transcript
      else (HERE / "transcripts" / f"{transcript}.txt").read_text()
    )
    self._make(
      binaries / "gcloud",
      f'exec "{sys.executable}" -I -S "{HERE / "gcloud.py"}" "$@"',
    )
    self._make(binaries / "sudo", 'exec "$@"')
    self._make(binaries / "gcsfuse", f'echo "$@" >>"{folder / "mounted"}"')
    python = folder / "python" / "python"
    python.parent.mkdir()
    shutil.copy(HERE / "python.sh", python)
    self.python = python
    self._process: subprocess.Popen | None = None
    self._out, self._told = folder / "out", folder / "told"

  def _make(self, path: pathlib.Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)

  def start(self, *options: str, steps: int = 5, **env: str) -> None:
    """The script with what every test wants; quick to look, and to give up."""
    self.close()
    command = [
      str(SCRIPT),
      *ZONE,
      "--name=demo",
      "--poll=1",
      f"--python={self.python}",
      f"--env=SAVED={self.saved}",
      f"--env=STEPS={steps}",
      *(f"--env={key}={value}" for key, value in env.items()),
      *options,
    ]
    with self._out.open("w") as out, self._told.open("w") as told:
      self._process = subprocess.Popen(
        command,
        stdout=out,
        stderr=told,
        stdin=subprocess.DEVNULL,
        env={
          **os.environ,
          "FAKE_CLOUD": str(self.folder),
          "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
          "AGENTRL_MOUNTS": str(self.folder / "mounts"),
          "AGENTRL_TICK_S": "0.3",
          "AGENTRL_PAUSE_S": "0.2",
        },
      )

  def end(self) -> tuple[int, str, str]:
    """Waits for it: its status, what it printed, and what it told."""
    try:
      status = self._process.wait(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
      raise AssertionError(
        f"no end after {DEADLINE_S} s:{self._said()}"
      ) from None
    return status, self._out.read_text(), self._told.read_text()

  def run(self, *options: str, **others) -> tuple[int, str, str]:
    """`start` and `end`."""
    self.start(*options, **others)
    return self.end()

  def interrupt(self) -> None:
    """Sends SIGINT, as ctrl-C does."""
    self._process.send_signal(signal.SIGINT)

  def _said(self) -> str:
    return f"\n{self._out.read_text()}\n{self._told.read_text()}"

  def calls(self) -> list[list[str]]:
    """Every call of gcloud, in order."""
    path = self.folder / "calls.jsonl"
    if not path.exists():
      return []
    return [json.loads(line) for line in path.read_text().splitlines()]

  def deeds(self) -> list[str]:
    """Calls that changed something, in short: `create demo-learner`."""
    deeds = []
    for call in self.calls():
      words = [w for w in call if not w.startswith("-") and "/" not in w]
      command = next((w for w in call if w.startswith("--command=")), "")
      verb, name = words[-2], words[-1].rstrip(":")
      if verb in {"describe", "list"} or words[-1] == "list":
        continue
      if verb == "ssh":
        rest = command.rpartition("bootstrap.sh ")[2].split(" ")
        name, verb = f"{rest[0]} {name}", "on"
      deeds.append(f"{verb} {name}")
    return deeds

  def until(self, what: str, condition) -> None:
    """Waits for something in the files of this cloud to come true."""
    wait_until(condition, lambda: f"{what}:{self._said()}", DEADLINE_S)

  def scene(self, number: int) -> None:
    """Goes on to a later scene of the transcript."""
    new = self.folder / "scene.new"
    new.write_text(str(number))
    new.rename(self.folder / "scene")

  def enough(self) -> None:
    """Lets the stand-in for the learner be done."""
    (self.saved / "enough").touch()

  def told(self) -> str:
    """The messages of the script so far."""
    return self._told.read_text()

  def step(self, worker: int = 0) -> int:
    """The last that the stand-in for the learner saved."""
    path = self.saved / f"launch.train-{worker}.step"
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0  # else it is being written

  def alive(self) -> list[int]:
    """Processes that belong to this cloud's hosts."""
    mark = f"HOME={self.folder}/".encode()
    found = []
    for process in pathlib.Path("/proc").iterdir():
      if process.name.isdigit():
        try:
          if mark in (process / "environ").read_bytes():
            found.append(int(process.name))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
          continue
    return found

  def close(self) -> None:
    """Ends the script, if it runs, but nothing on the hosts."""
    if self._process is not None:
      self._process.kill()
      self._process.wait()
      self._process = None

  def destroy(self) -> None:
    """Ends everything."""
    self.close()
    for pid in self.alive():
      try:
        os.kill(pid, signal.SIGKILL)
      except ProcessLookupError:
        continue
