"""From a Hugging Face folder through reinforcement learning and back to one."""

import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.export import Tensors, write_params
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from configs import base, pod
from launch.config.architecture import read_architecture
from launch.export import export
from launch.run.training import train
from tests import programs
from tests.data.chat import families as chat_families
from tests.launch import tiny
from tests.settings import COMPUTE

DEADLINE_S = 200
STEPS = 2
MODEL = ModelConfig(
  vocab_size=320,
  width=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  mlp_width=16,
  rope_theta=1e6,
  qkv_bias=True,
)


def write_model(folder: pathlib.Path, *, context: int = 2048) -> None:
  """A small Qwen2.5 with random weights, tokenizer and template."""
  policy = Policy(MODEL, COMPUTE)
  params = policy.init(jax.random.key(0))
  write_params(folder, params, MODEL, context=context)
  write_chat(folder)


def write_chat(folder: pathlib.Path) -> None:
  """The tokenizer and template of that model."""
  source = (chat_families.HERE / "qwen25.jinja").read_text()
  chat_families.write_folder(folder, chat_families.SMALL["qwen25"], source)


def config_of(workdir: pathlib.Path, model: pathlib.Path):
  c = tiny.get_config()
  c.workdir = str(workdir)
  c.pretrained.path = str(model)
  c.model = base.get_config().model
  c.tokenizer = base.get_config().tokenizer
  c.warm_start.epochs = 0
  c.compile_cache = ""
  c.engine.update(slots=(4,), num_slot_sizes=1)
  c.cross_policy.update(policy_slots=("fresh",), weights=(1.0,))
  c.evaluation.num_tasks = 1
  c.train.update(steps=STEPS, row_length=1024)
  # Random weights earn nothing that tells attempts apart, and teach a critic.
  c.model.value_head = True
  c.loss.value_coefficient = 1.0
  c.advantage.estimator = "gae"
  c.optimizer.learning_rate = 1e-2
  c.episode.max_tokens = 1024
  c.engine.context = 1024
  return c


@pytest.mark.slow
class ExportTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.model = cls.root / "model"
    write_model(cls.model)
    train(config_of(cls.root, cls.model))
    cls.run_root = cls.root / "tiny"

  def tensors(self, folder: pathlib.Path) -> dict[str, np.ndarray]:
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    params = read_params(folder, Policy(MODEL, COMPUTE), mesh)
    named = Tensors(MODEL, np.dtype(np.float32))
    return {name: named.gathered(params, name) for name in named.entries}

  def test_a_run_begins_with_what_it_was_given(self):
    written = export(self.run_root, self.root / "warm", stage="warm_start")
    self.assertEqual(
      written.num_params, sum(x.size for x in self.tensors(self.model).values())
    )
    self.assertIsNone(written.step)
    self.assertFalse((self.run_root / "demonstrations.npz").exists())
    evaluated = {p.name for p in (self.run_root / "evaluations").iterdir()}
    self.assertIn("warm_start_greedy.json", evaluated)
    self.assertNotIn("untrained_sampled.json", evaluated)
    first, warm = self.tensors(self.model), self.tensors(self.root / "warm")
    for name, wanted in first.items():
      np.testing.assert_array_equal(warm[name], wanted)

  def test_and_leaves_what_it_learned(self):
    to = self.root / "trained"
    export(self.run_root, to)
    first, trained = self.tensors(self.model), self.tensors(to)
    self.assertTrue(
      any(not np.array_equal(trained[n], first[n]) for n in first)
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
      self.assertEqual((to / name).read_text(), (self.model / name).read_text())
    described = json.loads((to / "config.json").read_text())
    self.assertEqual(described["torch_dtype"], "float32")
    self.assertEqual(described["max_position_embeddings"], 2048)

  def test_asked_for_fewer_bits(self):
    to = self.root / "halved"
    written = export(self.run_root, to, dtype="bfloat16")
    self.assertEqual(written.dtype, "bfloat16")
    described = json.loads((to / "config.json").read_text())
    self.assertEqual(described["torch_dtype"], "bfloat16")

  def test_the_command_says_what_it_wrote(self):
    to = self.root / "said"
    done = programs.run(
      "launch.export",
      f"--run={self.run_root}",
      f"--to={to}",
      deadline_s=DEADLINE_S,
    )
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    for wanted in (str(to), "float32", f"stage rl, step {STEPS}"):
      self.assertIn(wanted, done.stdout.replace("\n", " "))

  def test_refusals(self):
    with self.assertRaisesRegex(CheckpointError, "has no step 77; there are"):
      export(self.run_root, self.root / "nothing", step=77)
    with self.assertRaisesRegex(ConfigError, "is there already"):
      export(self.run_root, self.model)
    with self.assertRaisesRegex(ConfigError, "--step=1 .* --stage=warm_start"):
      export(self.run_root, self.root / "nothing", stage="warm_start", step=1)

  def test_nothing_to_begin_with(self):
    config = config_of(self.root, pathlib.Path())
    config.pretrained.path = ""
    with self.assertRaisesRegex(ConfigError, "says nothing to learn from"):
      train(config)


class ArchitectureTest(parameterized.TestCase):
  def test_the_pod_is_a_published_model(self):
    self.assertEqual(read_architecture(pod.get_config()).num_layers, 48)
    found = read_architecture(pod.get_config("llama-3.2-1b"))
    self.assertEqual(found.rope_factor, 32)

  @parameterized.parameters(
    ("model.width", 7, "model.width=7 means nothing where model.name=qwen3-"),
    ("model.name", "gpt", "model.name='gpt' is not one of"),
    ("tokenizer.vocab_size", 200_000, "200000 is above the 151936 tokens"),
    ("pretrained.path", "/nowhere", "pretrained.path=/nowhere cannot be read"),
  )
  def test_refuses(self, key, value, message):
    config = pod.get_config("qwen3-8b")
    config.update_from_flattened_dict({key: value})
    with self.assertRaisesRegex(ConfigError, message):
      read_architecture(config)

  def test_a_critic_can_be_asked_for(self):
    config = pod.get_config()
    config.model.value_head = True
    self.assertTrue(read_architecture(config).value_head)

  def test_the_folder_must_hold_what_the_name_says(self):
    with tempfile.TemporaryDirectory() as folder:
      model = pathlib.Path(folder) / "model"
      write_model(model)
      config = pod.get_config("qwen2.5-0.5b")
      config.pretrained.path = str(model)
      with self.assertRaisesRegex(ConfigError, "width is 16 there and 896 in"):
        read_architecture(config)
      config.model.name = ""
      self.assertEqual(read_architecture(config), MODEL)
      config.tokenizer.vocab_size = 99
      with self.assertRaisesRegex(ConfigError, "tokenizer.vocab_size=99 means"):
        read_architecture(config)
