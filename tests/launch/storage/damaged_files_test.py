"""A run's files, cut off anywhere: one sentence, or what is left of them."""

import contextlib
import gzip
import io
import json
import pathlib
import shutil
import tempfile

from absl.testing import parameterized

from agentrl_jax.errors import AgentRLError, ConfigError, NotWritten
from configs import quickstart
from launch import report, view
from launch.comparisons.runs import read_run
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import read_faults
from launch.reports.metrics_file import MetricsWriter, read_metrics
from launch.reports.summary import read_evaluation, read_summary, write_summary
from launch.storage.run_config import read_config
from launch.storage.run_directory import RunDirectory
from launch.sweeps.cells import progress_of, state_of
from launch.viewing.server import Viewer
from launch.viewing.trajectory_index import TrajectoryIndex
from tests.launch.reports import synthetic_run
from tests.launch.viewing import a_run

TRAJECTORIES = "trajectories/000001.jsonl.gz"
EVALUATION = "evaluations/rl_greedy.json"
READERS = {
  "config.yaml": read_config,
  "summary.json": read_summary,
  EVALUATION: read_evaluation,
  "metrics.jsonl": read_metrics,
  FAULTS: read_faults,
  TRAJECTORIES: lambda path: TrajectoryIndex(path.parents[1]).listing(),
}
# Of these a part is read: what a killed process leaves of its last line.
GROWING = ("metrics.jsonl", FAULTS)
OTHERS = (
  b"null\n",
  b"[]\n",
  b"{}\n",
  b"7\n",
  b"\xff\xfe\n",
  b"{\n",
  b"\0" * 9,
  b"[" * 100_000 + b"\n",
  b'{"stage": "rl", "step": 1e999, "time_s": 0}\n',
  b"a: [\n",
  b"train: 3\n",
  b'{"tasks": {"a": 1}}\n',
  b'{"x": {}}\n',
)


def make_run(root):
  run = RunDirectory(root)
  run.keep_config(quickstart.get_config())
  synthetic_run.write_metrics(root, num_steps=3)
  for update in range(2):
    a_run.add_update(run, update)
  summary = synthetic_run.a_summary()
  write_summary(summary, root / "summary.json")
  body = summary.evaluations[0].to_json()
  (root / EVALUATION).parent.mkdir(exist_ok=True)
  (root / EVALUATION).write_text(json.dumps(body))
  fault = {"time_s": 1.0, "version": 1, "kind": "episode", "count": 1}
  (root / FAULTS).write_text(json.dumps(fault | {"what": "x"}) + "\n")


class DamagedFilesTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.whole = pathlib.Path(folder) / "run"
    make_run(cls.whole)

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.run_folder = pathlib.Path(folder) / "run"
    shutil.copytree(self.whole, self.run_folder)

  @parameterized.parameters(*READERS)
  def test_a_file_that_was_cut_off(self, name):
    path = self.run_folder / name
    read = READERS[name]
    read(path)
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 2):
      path.write_bytes(whole[:size])
      with self.subTest(size=size, of=len(whole)):
        if name in GROWING:
          read(path)
        elif name == TRAJECTORIES:
          (problem,) = read(path).problems or ("",)
          self.assertIn(name if size else "", problem)
        else:
          with self.assertRaisesRegex(ConfigError, f"{path} cannot be read"):
            read(path)

  @parameterized.parameters(*READERS)
  def test_a_file_with_other_contents(self, name):
    path = self.run_folder / name
    is_packed = name == TRAJECTORIES
    for content in OTHERS:
      path.write_bytes(gzip.compress(content) if is_packed else content)
      try:
        READERS[name](path)
      except AgentRLError as error:
        self.assertIn(str(path), str(error))

  @parameterized.parameters(*READERS)
  def test_a_folder_in_place_of_a_file(self, name):
    path = self.run_folder / name
    path.unlink()
    path.mkdir()
    if name == TRAJECTORIES:
      self.assertIn(name, READERS[name](path).problems[0])
      return
    with self.assertRaisesRegex(ConfigError, f"{path} cannot be read"):
      READERS[name](path)

  def test_a_folder_in_place_of_the_metrics_ends_a_start_with_its_name(self):
    path = self.run_folder / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    with self.assertRaisesRegex(NotWritten, f"{path} cannot be written"):
      MetricsWriter(self.run_folder)

  def test_flipped_bytes_of_trajectories_are_named_beside_the_others(self):
    path = self.run_folder / TRAJECTORIES
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    listing = READERS[TRAJECTORIES](path)
    self.assertIn(TRAJECTORIES, listing.problems[0])
    self.assertNotEmpty(listing.trajectories)

  def test_a_config_that_ends_with_a_whole_section_was_cut_off(self):
    """The rest is YAML still, and every line of it has an end."""
    path = self.run_folder / "config.yaml"
    whole = path.read_text()
    for section in ("environments", "loss", "train"):
      path.write_text(whole[: whole.index(f"\n{section}:") + 1])
      with self.assertRaisesRegex(ConfigError, "ends before `train`"):
        read_config(path)

  @parameterized.parameters(
    ("config.yaml", (read_run, Viewer)),
    ("summary.json", (read_run, state_of)),
    (EVALUATION, (read_run,)),
  )
  def test_commands_say_which_file_it_is(self, name, commands):
    path = self.run_folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for command in commands:
      with self.assertRaisesRegex(ConfigError, f"{path} cannot be read"):
        command(self.run_folder)
    progress_of(self.run_folder)

  def test_a_page_that_has_no_place_is_one_sentence(self):
    no_folder = str(self.run_folder / "config.yaml" / "page")
    run = str(self.run_folder)
    for main, *words in (
      (report.main, run, "--output", no_folder),
      (view.main, run, "--output", no_folder),
    ):
      said = io.StringIO()
      with self.subTest(words), contextlib.redirect_stderr(said):
        with self.assertRaises(SystemExit):
          main(words)
        self.assertRegex(said.getvalue(), f"{no_folder} cannot be")

  def test_progress_passes_over_lines_that_are_none_of_metrics(self):
    with (self.run_folder / "metrics.jsonl").open("ab") as file:
      file.write(b"null\n[]\n{}\n7\n")
    self.assertEqual(progress_of(self.run_folder), "RL 3")
