"""configs/distil.py: a student of one size learns from a teacher of another."""

import dataclasses
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.policy import Policy
from configs import distil
from launch.config.chat import require_same_vocabulary
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run.reinforcement import make_reference
from launch.run.training import train
from launch.storage.load_params import with_teacher
from tests.launch.export_test import MODEL, write_chat, write_model
from tests.settings import COMPUTE

STEPS = 40
TEACHER = dataclasses.replace(MODEL, width=32, num_layers=1, num_heads=4)
SMALL = {
  "compile_cache": "",
  "compute.scan_layers": False,
  "train.steps": STEPS,
  "group.size": 1,
  "optimizer.learning_rate": 5e-3,
  "episode.max_answer_tokens": 16,
  "admission.groups_per_step": 64,
  "admission.max_concurrent_groups": 64,
  "queue.max_groups": 64,
  "engine.slots": (32,),
  "engine.num_slot_sizes": 1,
  "engine.prefill_chunks": (64,),
  "checkpoint.every": STEPS // 2,
  "evaluation.num_tasks": 1,
  "sampling.temperature": 1.0,
}


def write_teacher(folder: pathlib.Path) -> None:
  """A model of another size with the student's tokenizer, and sharper."""
  params = Policy(TEACHER, COMPUTE).init(jax.random.key(1))
  params = jax.tree.map(lambda x: 1.5 * x if x.ndim > 1 else x, params)
  write_params(folder, params, TEACHER, context=2048)
  write_chat(folder)


class DistilTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.student, cls.teacher = cls.root / "student", cls.root / "teacher"
    write_model(cls.student)
    write_teacher(cls.teacher)

  def config(self, **changes):
    config = distil.get_config(str(self.student))
    config.workdir = str(self.root / "runs")
    config.reference.path = str(self.teacher)
    config.update_from_flattened_dict(SMALL | changes)
    return config

  def test_the_teacher_may_have_another_size(self):
    settings = with_teacher(read_settings(self.config()))
    self.assertEqual(settings.model, MODEL)
    self.assertEqual(settings.reference_model, TEACHER)
    with self.assertRaisesRegex(ConfigError, "reference.version=4 is one of a"):
      with_teacher(read_settings(self.config(**{"reference.version": 4})))

  def test_but_not_other_tokens(self):
    require_same_vocabulary(self.student, str(self.teacher))
    path = self.teacher / "tokenizer.json"
    before = path.read_text()
    self.addCleanup(path.write_text, before)
    tokenizer = json.loads(before)
    ids = tokenizer["model"]["vocab"]
    first, second = (text for text, id in ids.items() if id in (65, 70))
    ids[first], ids[second] = ids[second], ids[first]
    path.write_text(json.dumps(tokenizer))
    with self.assertRaisesRegex(
      ConfigError, "another vocabulary .* 2 ids differ, the first is 65, which"
    ):
      require_same_vocabulary(self.student, str(self.teacher))
    path.unlink()
    with self.assertRaisesRegex(ConfigError, "has no tokenizer.json"):
      require_same_vocabulary(self.student, str(self.teacher))

  @pytest.mark.slow
  @pytest.mark.timeout(1800)
  def test_the_divergence_falls_and_the_student_may_teach(self):
    config = self.config()
    train(config)
    run = self.root / "runs" / config.name
    rows = [r for r in read_metrics(run / "metrics.jsonl") if r.stage == "rl"]
    nats = [row.values["policy/reverse_kl"] for row in rows]
    self.assertLen(nats, STEPS)
    self.assertLess(np.mean(nats[-4:]), 0.85 * np.mean(nats[:4]), nats)
    # A run is a teacher, too: at its last step, or at another.
    of = {}
    for step in (-1, STEPS // 2):
      settings = read_settings(
        self.config(**{"reference.path": str(run), "reference.version": step})
      )
      mesh = sharding.make_mesh(settings.mesh, slices=settings.slices)
      policy = Policy(settings.model, settings.compute, mesh)
      reference = make_reference(
        settings, policy, policy.init(jax.random.key(0))
      )
      self.assertEqual(reference.policy.config, MODEL)
      of[step] = jax.tree.leaves(reference.fetch())
    gap = max(
      float(np.abs(a - b).max()) for a, b in zip(*of.values(), strict=True)
    )
    self.assertGreater(gap, 1e-4)
    require_same_vocabulary(self.student, str(run))
