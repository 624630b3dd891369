"""launch/tpu/bootstrap.sh, as it runs on every host."""

import os
import pathlib
import signal
import subprocess
import tempfile

import pytest
from absl.testing import absltest

from tests.clocks import wait_until

ROOT = pathlib.Path(__file__).parents[3]
BOOTSTRAP = ROOT / "launch" / "tpu" / "bootstrap.sh"
DEADLINE_S = 240.0


class BootstrapTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.addCleanup(self.call, "stop", "learner", "0", check=False)

  def call(self, *words: str, check=True, **env: str):
    return subprocess.run(
      ["bash", BOOTSTRAP, *words],
      capture_output=True,
      text=True,
      check=check,
      timeout=DEADLINE_S,
      env={
        "PATH": os.environ["PATH"],
        "HOME": str(self.home),
        "AGENTRL_WORKER": "3",
        "AGENTRL_PAUSE_S": "0",
        **env,
      },
    )

  def start(self, line: str, key: str = "k", restart: str = "never", **env):
    return self.call(
      "start", "learner", key, restart, "--", "bash", "-c", line, **env
    )

  def until(self, condition):
    wait_until(condition, "the host's files", DEADLINE_S)

  def place(self, name: str) -> str:
    path = self.home / "agentrl" / "places" / "learner" / name
    return path.read_text() if path.exists() else ""

  def child(self) -> int:
    """The command's process, which is written down after its start."""
    self.until(lambda: len(self.place("child").split()) == 2)
    return int(self.place("child").split()[0])

  def test_follows_to_the_end_with_the_index_and_the_status(self):
    self.start("echo one; echo; echo 'two  words'; exit 7")
    followed = self.call("follow", "learner", check=False)
    self.assertEqual(followed.returncode, 7)
    self.assertEqual(
      followed.stdout.splitlines(),
      [
        "[learner/3] one",
        "[learner/3] ",
        "[learner/3] two  words",
        "agentrl: learner/3 ended with status 7",
      ],
    )

  @pytest.mark.slow
  def test_each_process_of_a_learner_is_told_who_it_is(self):
    self.start(
      "echo $AGENTRL_PROCESS_ID/$AGENTRL_NUM_PROCESSES",
      AGENTRL_NUM_PROCESSES="8",
    )
    self.assertIn("] 3/8", self.call("follow", "learner").stdout)
    self.start("echo id=$AGENTRL_PROCESS_ID.", AGENTRL_NUM_PROCESSES="auto")
    self.assertIn("] id=.", self.call("follow", "learner").stdout)

  def test_the_same_command_runs_once_and_another_replaces_it(self):
    self.start("exec sleep 1000", key="a")
    first = self.place("pid")
    self.assertIn("runs on", self.start("exec sleep 1000", key="a").stdout)
    self.assertEqual(self.place("pid"), first)
    self.call("running", "learner", "a")
    self.assertEqual(
      self.call("running", "learner", "b", check=False).returncode, 1
    )
    self.start("exec sleep 1000", key="b")
    self.assertNotEqual(self.place("pid"), first)
    self.call("running", "learner", "b")

  def test_what_does_not_heed_sigterm_is_killed(self):
    self.start("trap '' TERM; echo on; while :; do sleep 1; done")
    self.until(lambda: "on" in self.place("log"))
    child = self.child()
    said = self.call("stop", "learner", "1").stdout
    self.assertIn("did not end within 1 s of SIGTERM; killed", said)
    self.until(lambda: not _alive(child))

  def test_nothing_of_a_killed_command_is_left(self):
    self.start("sleep 1234 & echo $!; wait")
    self.until(lambda: self.place("log").strip())
    grandchild = int(self.place("log"))
    os.kill(self.child(), signal.SIGKILL)
    self.assertEqual(
      self.call("follow", "learner", check=False).returncode, 137
    )
    self.until(lambda: not _alive(grandchild))

  @pytest.mark.slow
  def test_killed_with_its_supervisor_it_is_found_and_ended(self):
    self.start("exec sleep 1000")
    child = self.child()
    os.kill(int(self.place("pid")), signal.SIGKILL)
    followed = self.call("follow", "learner", check=False)
    self.assertEqual(followed.returncode, 137)
    self.assertTrue(_alive(child))
    self.start("echo again")
    self.until(lambda: not _alive(child))
    self.assertIn("again", self.call("follow", "learner").stdout)

  def test_what_may_comes_back_by_itself(self):
    self.start(f"echo x >>{self.home}/count; exit 1", restart="always")
    count = self.home / "count"
    self.until(lambda: count.exists() and len(count.read_text()) > 5)
    supervisor = int(self.place("pid"))
    self.call("stop", "learner", "30")
    # Nobody is left who could start it again.
    self.until(lambda: not _alive(supervisor))
    log = self.place("log")
    self.assertIn("learner ended with status 1; it starts again in 0 s", log)

  def test_what_refuses_its_config_does_not_come_back(self):
    self.start(f"echo x >>{self.home}/count; exit 2", restart="always")
    followed = self.call("follow", "learner", check=False)
    self.assertEqual(followed.returncode, 2)
    self.assertIn("it is not started again", followed.stdout)
    self.assertEqual((self.home / "count").read_text(), "x\n")

  def test_it_has_the_time_to_save_that_it_was_started_with(self):
    line = (
      "trap 'sleep 2; echo saved; exit 143' TERM; echo on; sleep 999 & wait"
    )
    for seconds, saved in (("120", True), ("0", False)):
      with self.subTest(seconds=seconds):
        self.start(line, AGENTRL_GRACE_S=seconds)
        self.until(lambda: "on" in self.place("log"))
        # The caller's own environment does not count.
        self.call("stop", "learner", "own", AGENTRL_GRACE_S="1")
        self.assertEqual("saved" in self.place("log"), saved)

  def test_in_the_foreground_it_forwards_sigterm(self):
    process = subprocess.Popen(
      [
        "bash",
        BOOTSTRAP,
        "run",
        "learner",
        "never",
        "--",
        "bash",
        "-c",
        "trap 'echo saved; exit 143' TERM; echo on; sleep 1000 & wait",
      ],
      env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
      stdout=subprocess.PIPE,
      text=True,
    )
    with process:
      self.assertEqual(process.stdout.readline(), "on\n")
      process.terminate()
      self.assertEqual(process.stdout.read(), "saved\n")
      self.assertEqual(process.wait(), 143)

  def test_a_python_that_is_not_there_is_named(self):
    said = self.call("install", check=False, AGENTRL_PYTHON="/no/python")
    self.assertEqual(said.returncode, 1)
    self.assertIn("there is no /no/python on", said.stderr)

  @pytest.mark.full
  def test_installs_once_per_lock_file(self):
    lock = self.home / "lock"
    lock.write_text("# nothing\n")
    first = self.call("install", AGENTRL_LOCK=str(lock)).stdout
    self.assertIn("installing on", first)
    again = self.call("install", AGENTRL_LOCK=str(lock)).stdout
    self.assertIn("are those of the lock file", again)
    self.start("command -v python", AGENTRL_LOCK=str(lock))
    python = self.call("follow", "learner").stdout
    self.assertIn(f"{self.home}/agentrl/venv-", python)
    lock.write_text("# nothing, in other words\n")
    self.assertIn(
      "installing on", self.call("install", AGENTRL_LOCK=str(lock)).stdout
    )


def _alive(pid: int) -> bool:
  try:
    return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
  except FileNotFoundError:
    return False
