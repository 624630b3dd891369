"""Runs from scratch are merged; the merge evaluates, trains and exports."""

import base64
import gzip
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.data.records import Message
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from launch.config.chat import codec_of
from launch.config.settings import read_settings
from launch.export import export
from launch.storage.run_config import run_config
from launch.train import train
from tests import programs
from tests.launch import tiny
from tests.launch.export_test import MODEL, write_model
from tests.settings import COMPUTE

POLICY = Policy(MODEL, COMPUTE)
DEADLINE_S = 300
STEPS = 4  # from the merge


def _sampled_by(path: pathlib.Path) -> dict[int, set[int]]:
  """Returns the versions that sampled a file's turns, by policy slot."""
  versions: dict[int, set[int]] = {}
  for line in gzip.decompress(path.read_bytes()).splitlines():
    for trajectory in json.loads(line)["trajectories"]:
      for turn in trajectory["turns"]:
        found = np.frombuffer(base64.b64decode(turn["version"]), np.int32)
        versions.setdefault(turn["policy_slot"], set()).update(found.tolist())
  return versions


def test_overlaps_are_printed(tmp_path):
  write_model(tmp_path / "base")
  params = read_params(
    tmp_path / "base", POLICY, sharding.make_mesh({}), dtype="float32"
  )
  other = jax.tree.map(lambda x: x + 1, params)
  write_params(tmp_path / "expert", other, MODEL, context=128, dtype="float32")
  done = programs.run(
    "launch.merge",
    f"--base={tmp_path / 'base'}",
    f"--experts={tmp_path / 'expert'}",
    f"--to={tmp_path / 'merged'}",
    deadline_s=DEADLINE_S,
  )
  said = done.stdout
  assert "100.0% of its numbers changed, 0.0% of these in another" in said
  assert said.endswith("merged: mean of 1 models\n"), done.stderr


def _said(test, program, *flags) -> str:
  done = programs.run(program, *flags, deadline_s=DEADLINE_S)
  test.assertEqual(done.returncode, 0, done.stderr[-3000:])
  return done.stdout


@pytest.mark.slow
class MergedRunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    config = tiny.get_config()
    config.workdir = str(cls.root)
    config.compile_cache = str(cls.root / "compiled")
    train(config)
    cls.run_root = cls.root / "tiny"
    for name, stage, step in (
      ("base", "warm_start", None),
      ("early", "rl", 4),
      ("late", "rl", 6),
    ):
      export(
        cls.run_root, cls.root / name, stage=stage, step=step, dtype="float32"
      )

  def scores(self, *flags, config="tests/launch/tiny.py"):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    output = pathlib.Path(folder) / "scores.json"
    _said(
      self,
      "launch.evaluate",
      f"--config={config}",
      "--config.evaluation.num_tasks=24",
      f"--output={output}",
      *flags,
    )
    lines = output.with_suffix(".attempts.jsonl").read_text().splitlines()
    attempts = sorted(json.dumps(json.loads(line)) for line in lines[1:])
    return json.loads(output.read_text())["tasks"], attempts

  def test_an_exported_run_speaks_as_the_run_does(self):
    settings = read_settings(run_config(self.run_root))
    of_run = codec_of(self.run_root, settings.chat)
    of_folder = load_chat(self.root / "late", settings.chat)
    self.assertEqual(of_run.stop_tokens, of_folder.stop_tokens)
    said = [Message("system", "Add: 3 4"), Message("user", "<|end|> 5")]
    np.testing.assert_array_equal(
      of_run.start(said, []), of_folder.start(said, [])
    )

  def test_an_exported_run_plays_as_the_run_does(self):
    of_run = self.scores("--policy=rl", f"--run={self.run_root}")
    of_folder = self.scores(
      "--policy=pretrained",
      f"--config.pretrained.path={self.root / 'late'}",
      config="tests/launch/tiny.py:pretrained",
    )
    self.assertEqual(of_folder, of_run)

  def test_a_merge_trains_serves_its_versions_and_exports(self):
    merged = self.root / "merged"
    said = _said(
      self,
      "launch.merge",
      f"--base={self.root / 'base'}",
      f"--experts={self.root / 'early'},{self.root / 'late'}",
      f"--to={merged}",
    )
    self.assertIn("of its numbers changed", said)
    config = tiny.get_config("pretrained")
    config.update_from_flattened_dict(
      {
        "name": "again",
        "workdir": str(self.root),
        "pretrained.path": str(merged),
        "train.steps": STEPS,
      }
    )
    train(config)
    root = self.root / "again"
    evaluated = {path.stem for path in (root / "evaluations").iterdir()}
    self.assertLessEqual({"warm_start_greedy", "rl_greedy"}, evaluated)
    # The merge is version 0, and plays on beside the policy that it became.
    versions = _sampled_by(root / "trajectories" / f"{STEPS - 1:06d}.jsonl.gz")
    self.assertGreater(max(versions[0]), 0)
    self.assertEqual(min(versions[1]), 0)
    self.assertEqual(export(root, self.root / "after").step, STEPS)


if __name__ == "__main__":
  absltest.main()
