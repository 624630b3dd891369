"""launch/tpu_run.sh --local: the bootstrap of every host, on this one."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest
from absl.testing import parameterized

from tests.clocks import wait_until

ROOT = pathlib.Path(__file__).parents[3]
STAND_IN = pathlib.Path(__file__).parent / "cloud" / "python.sh"
DEADLINE_S = 600.0


class TpuLocalTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.told = self.folder / "told"
    self.out = self.folder / "out"
    self.saved = self.folder / "saved"

  def start(
    self, *options: str, python: str, processes: int = 2
  ) -> subprocess.Popen:
    with self.out.open("w") as out, self.told.open("w") as told:
      process = subprocess.Popen(
        [
          ROOT / "launch" / "tpu_run.sh",
          "--name=local",
          f"--local={processes}",
          f"--local-folder={self.folder}/hosts",
          "--poll=0",
          "--peers=60",
          f"--python={python}",
          *options,
        ],
        stdout=out,
        stderr=told,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "AGENTRL_TICK_S": "0.3", "AGENTRL_PAUSE_S": "0"},
      )
    self.addCleanup(self.end, process)
    return process

  def end(self, process: subprocess.Popen) -> None:
    if process.poll() is None:
      process.terminate()
      process.wait(DEADLINE_S)

  def until(self, what: str, condition) -> None:
    wait_until(condition, lambda: f"{what}:{self.said()}", DEADLINE_S)

  def said(self) -> str:
    return f"\n{self.out.read_text()[-4000:]}\n{self.told.read_text()}"

  def learner(self, index: int) -> int:
    """The process id of a learner process, 0 if it does not run."""
    host = self.folder / "hosts" / "local-learner" / str(index)
    try:
      words = (host / "agentrl/places/learner/child").read_text().split()
    except FileNotFoundError:
      words = []
    return int(words[0]) if words else 0

  def start_stand_ins(self, *options: str) -> subprocess.Popen:
    """Starts learners that count steps into `saved`, and never end."""
    self.saved.mkdir()
    python = self.folder / "python"
    python.symlink_to(STAND_IN)
    return self.start(
      f"--env=SAVED={self.saved}",
      "--env=STEPS=100000",
      *options,
      "--",
      "--config=tests/launch/tiny.py",
      python=str(python),
    )

  @pytest.mark.slow
  def test_all_start_again_when_one_is_killed(self):
    process = self.start_stand_ins("--peers=0", "--grace=5")
    self.until("both learners", lambda: self.learner(0) and self.learner(1))
    self.until("steps", (self.saved / "launch.train-1.step").exists)
    first = self.learner(0)
    os.kill(self.learner(1), signal.SIGKILL)
    self.until("the restart", lambda: self.learner(0) not in (0, first))
    (self.saved / "enough").touch()
    self.assertEqual(process.wait(DEADLINE_S), 0, self.said())
    told = self.told.read_text()
    self.assertIn("learner/1 ended with status 137", told)
    self.assertIn("(restart 1 of at most 5)", told)
    around = (self.saved / "environment-1").read_text()
    self.assertIn("AGENTRL_PROCESS_ID=1", around)
    self.assertIn("AGENTRL_NUM_PROCESSES=2", around)
    self.assertRegex(around, r"AGENTRL_COORDINATOR=127\.0\.0\.1:\d+")

  @pytest.mark.slow
  def test_ctrl_c_lets_all_save_and_leaves_nothing(self):
    process = self.start_stand_ins()
    self.until("steps", (self.saved / "launch.train-1.step").exists)
    self.until("steps", (self.saved / "launch.train-0.step").exists)
    process.send_signal(signal.SIGINT)
    self.assertEqual(process.wait(DEADLINE_S), 130, self.said())
    self.assertIn("goes on where this one stopped", self.told.read_text())
    for index in (0, 1):
      self.assertEqual(self.learner(index), 0)
      (log,) = (self.folder / "hosts" / "local-learner" / str(index)).glob(
        "agentrl/places/learner/log"
      )
      self.assertRegex(log.read_text(), r"saved \d+\n$")

  @parameterized.parameters("launch.train", "launch.serve_rollouts")
  @pytest.mark.slow
  def test_a_refused_config_ends_the_run_and_is_not_started_again(self, role):
    process = self.start_stand_ins(
      "--rollout=1", f"--env=REFUSED_BY={role}", "--env=BREAK_WITH=2"
    )
    self.assertEqual(process.wait(DEADLINE_S), 1, self.said())
    told = self.told.read_text()
    self.assertIn("refuses its flags or its config", told)
    self.assertIn("Correct it and give the command again", told)
    self.assertNotIn("restart 1", told)
    self.assertNotIn("where it should not", told)
    self.assertNotIn("it starts again", self.out.read_text())
    self.assertEqual([self.learner(i) for i in (0, 1)], [0, 0])

  @pytest.mark.full
  @pytest.mark.timeout(2 * DEADLINE_S)
  def test_an_update_longer_than_the_config_allows_is_saved(self):
    """The learner gets --grace; by its config it would soon give up."""
    hold = self.folder / "hold"
    process = self.start(
      "--env=JAX_PLATFORMS=cpu",
      f"--env=HOLD={hold}",
      "--grace=240",
      "--",
      "--config=tests/launch/tpu/slow_update.py",
      python=sys.executable,
      processes=1,
    )
    run = self.folder / "hosts" / "runs" / "local"
    self.until("a checkpoint", lambda: _checkpoints(run))
    hold.touch()
    self.until("a slow update", hold.with_suffix(".reached").exists)
    before = _checkpoints(run)[-1]
    process.send_signal(signal.SIGINT)
    self.until("the signal", lambda: "saves first" in self.told.read_text())
    with self.assertRaises(subprocess.TimeoutExpired):
      process.wait(5)  # ten times what the config allows
    hold.unlink()
    self.assertEqual(process.wait(DEADLINE_S), 130, self.said())
    self.assertGreater(_checkpoints(run)[-1], before, self.said())
    self.assertNotIn("is not complete", self.said())

  @pytest.mark.full
  @pytest.mark.timeout(2 * DEADLINE_S)
  def test_trains_through_the_death_of_either_process(self):
    process = self.start(
      "--env=JAX_PLATFORMS=cpu",
      "--env=XLA_FLAGS=--xla_force_host_platform_device_count=2",
      "--",
      "--config=tests/launch/tiny.py",
      "--config.mesh.data=2",
      "--config.mesh.fsdp=2",
      "--config.train.micro_batch=4",
      python=sys.executable,
    )
    run = self.folder / "hosts" / "runs" / "local"
    for victim, checkpoint in ((1, 2), (0, 4)):
      # A folder that orbax has committed.
      self.until(
        f"checkpoint {checkpoint}",
        lambda number=checkpoint: any(
          p.name.isdigit() and int(p.name) >= number
          for p in (run / "rl").glob("*")
        ),
      )
      before = self.learner(victim)
      if not before:
        continue  # it was done faster than we looked
      os.kill(before, signal.SIGKILL)
      self.until(
        "the restart",
        lambda old=before, who=victim: self.learner(who) not in (0, old),
      )
    self.assertEqual(process.wait(DEADLINE_S), 0, self.said())
    self.assertIn("(restart 1 of at most 5)", self.told.read_text())
    self.assertTrue((run / "summary.json").exists(), self.said())


def _checkpoints(run: pathlib.Path) -> list[int]:
  """Returns the steps whose checkpoints are complete."""
  return sorted(int(p.name) for p in (run / "rl").glob("*") if p.name.isdigit())
