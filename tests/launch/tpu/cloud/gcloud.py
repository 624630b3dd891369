"""A `gcloud` that plays a transcript, and hosts that are folders.

A transcript says what gcloud answers. After the line of a command (its
beginning; `*` stands for any characters) come its answers: `|` lines go to
stdout, `!` lines to stderr, `? 1` is the exit status, and `--` begins the
answer of the next call. The last answer is given from then on. `@ vanish NODE`
takes a slice's hosts away, with all that runs there.

`= 2` begins the second scene, which is on once a test writes so into the file
`scene`; what it does not speak of is answered as in the scenes before.

`hosts NODE 2` makes a slice of two hosts. Unless the transcript has something
else to say, `ssh` runs its command on them, and `scp` copies to them. Every
call is written down. What no line speaks of is refused with status 99.
"""

import fcntl
import fnmatch
import json
import os
import pathlib
import sys

CLOUD = pathlib.Path(os.environ["FAKE_CLOUD"])
UNKNOWN_COMMAND = 99


class Answer:
  """Output and exit status of one call of a command."""

  def __init__(self) -> None:
    self.stdout: list[str] = []
    self.stderr: list[str] = []
    self.status = 0
    self.vanish: list[str] = []


# By the scene, and the pattern of the command.
Answers = dict[tuple[int, str], list[Answer]]


def read_transcript(text: str) -> tuple[Answers, dict[str, int]]:
  """The answers, and the number of hosts by slice."""
  answers: Answers = {}
  hosts: dict[str, int] = {}
  scene, told = 1, [Answer()]
  for line in text.splitlines():
    mark, _, rest = line.partition(" ")
    match mark:
      case "$":
        told = answers[(scene, rest)] = [Answer()]
      case "--":
        told.append(Answer())
      case "=":
        scene = int(rest)
      case "hosts":
        node, number = rest.split()
        hosts[node] = int(number)
      case _:
        _say_in(told[-1], mark, rest)
  return answers, hosts


def _say_in(answer: Answer, mark: str, rest: str) -> None:
  match mark:
    case "|":
      answer.stdout.append(rest)
    case "!":
      answer.stderr.append(rest)
    case "?":
      answer.status = int(rest)
    case "@":
      answer.vanish.append(rest.removeprefix("vanish "))
    case "#" | "":
      pass
    case _:
      raise ValueError(f"no line of a transcript begins with {mark}")


def main(arguments: list[str]) -> int:
  """One call."""
  answers, hosts = read_transcript((CLOUD / "transcript").read_text())
  line = " ".join(["gcloud", *arguments])
  with (CLOUD / "calls.jsonl").open("a") as calls:
    fcntl.flock(calls, fcntl.LOCK_EX)
    calls.write(json.dumps(["gcloud", *arguments]) + "\n")
    calls.flush()
    answer = _next_answer(line, answers)
  if answer is not None:
    return _give(answer)
  node, workers = _target(arguments, hosts)
  if node is None:
    sys.stderr.write(f"ERROR: no transcript speaks of: {line}\n")
    return UNKNOWN_COMMAND
  if "scp" in arguments:
    return _copy(arguments, node, hosts[node])
  return _run(arguments, node, workers)


def _next_answer(line: str, answers: Answers) -> Answer | None:
  now = CLOUD / "scene"
  scene = int(now.read_text()) if now.exists() else 1
  for key in sorted(answers, key=lambda key: -key[0]):
    pattern, told = key[1], answers[key]
    if key[0] <= scene and fnmatch.fnmatchcase(
      line, pattern.replace("[", "[[]") + "*"
    ):
      count = CLOUD / "counts" / f"{key[0]}-{hash_of(pattern)}"
      count.parent.mkdir(exist_ok=True)
      before = int(count.read_text()) if count.exists() else 0
      count.write_text(str(before + 1))
      return told[min(before, len(told) - 1)]
  return None


def hash_of(text: str) -> int:
  """The same in every process, which `hash` is not."""
  return int.from_bytes(text.encode(), "little") % (2**61 - 1)


def _give(answer: Answer) -> int:
  for node in answer.vanish:
    _vanish(node)
  sys.stdout.writelines(f"{line}\n" for line in answer.stdout)
  sys.stderr.writelines(f"{line}\n" for line in answer.stderr)
  return answer.status


def _target(
  arguments: list[str], hosts: dict[str, int]
) -> tuple[str | None, list[int]]:
  node = next(
    (a.rstrip(":") for a in arguments if a.rstrip(":") in hosts), None
  )
  if node is None or not {"ssh", "scp"} & set(arguments):
    return None, []
  one = next(
    (a for a in arguments if a.startswith("--worker=")), "--worker=all"
  )
  number = one.removeprefix("--worker=")
  return node, list(range(hosts[node])) if number == "all" else [int(number)]


def _home(node: str, worker: int) -> pathlib.Path:
  home = CLOUD / node / str(worker)
  home.mkdir(parents=True, exist_ok=True)
  return home


# What only some calls need is imported there: a test makes dozens of calls.


def _copy(arguments: list[str], node: str, number: int) -> int:
  import shutil

  source = next(a for a in arguments if a.startswith("/"))
  for worker in range(number):
    shutil.copy(source, _home(node, worker))
  return 0


def _run(arguments: list[str], node: str, workers: list[int]) -> int:
  import subprocess

  command = next(a for a in arguments if a.startswith("--command="))
  runs = [
    subprocess.Popen(
      ["bash", "-c", command.removeprefix("--command=")],
      cwd=_home(node, worker),
      stdin=subprocess.DEVNULL,
      env={
        **os.environ,
        "HOME": str(_home(node, worker)),
        "AGENTRL_WORKER": str(worker),
      },
    )
    for worker in workers
  ]
  statuses = [run.wait() for run in runs]
  # As gcloud does: all are waited for, and the first failure is the status.
  # A host that is gone takes the connection with it.
  if not all((CLOUD / node / str(worker)).exists() for worker in workers):
    return 255
  return next((s & 0xFF for s in statuses if s), 0)


def _vanish(node: str) -> None:
  """As when the machines are taken away: nothing there ends in good order."""
  import shutil
  import signal

  shutil.rmtree(CLOUD / node, ignore_errors=True)
  mark = f"HOME={CLOUD / node}/".encode()
  for process in pathlib.Path("/proc").iterdir():
    if process.name.isdigit() and int(process.name) != os.getpid():
      try:
        if mark in (process / "environ").read_bytes():
          os.kill(int(process.name), signal.SIGKILL)
      except (FileNotFoundError, PermissionError, ProcessLookupError):
        continue


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
