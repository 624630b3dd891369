"""Folders are merged tensor by tensor, and read back as a model."""

import json
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.hugging_face.tensor_names import EMBEDDING, HEAD
from agentrl_jax.model.merging import RULES, MergeRule
from agentrl_jax.model.policy import Policy
from launch.storage.merged_folder import ABOUT, merge_folders
from tests.launch.export_test import MODEL
from tests.settings import COMPUTE

POLICY = Policy(MODEL, COMPUTE)


def written(folder: pathlib.Path, params, model=MODEL, dtype="float32"):
  write_params(folder, params, model, context=128, dtype=dtype)
  return folder


def moved(params, seed: int):
  """Changes every second leaf, as training of a part would."""
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  return jax.tree.unflatten(
    tree,
    [
      leaf + 0.1 * jax.random.normal(key, leaf.shape) * ((n + seed) % 2)
      for n, (leaf, key) in enumerate(zip(leaves, keys, strict=True))
    ],
  )


class MergeTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.models = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.params = POLICY.init(jax.random.key(0))
    cls.trained = [moved(cls.params, seed) for seed in (1, 2)]
    written(cls.models / "base", cls.params)
    (cls.models / "base" / "tokenizer.json").write_text("{}")
    for n, params in enumerate(cls.trained):
      written(cls.models / f"expert{n}", params)

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    shutil.copytree(self.models, self.folder, dirs_exist_ok=True)
    self.base = self.folder / "base"
    self.experts = [self.folder / f"expert{n}" for n in range(2)]

  def read(self, folder):
    mesh = sharding.make_mesh({})
    return read_params(folder, POLICY, mesh, dtype="float32")

  def test_the_mean_is_that_of_the_params(self):
    to = self.folder / "merged"
    merge_folders(self.base, self.experts, to, MergeRule(name="mean"))
    expected = jax.tree.map(lambda a, b: (a + b) / 2, *self.trained)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
      self.read(to),
      expected,
    )
    self.assertEqual((to / "tokenizer.json").read_text(), "{}")
    about = json.loads((to / ABOUT).read_text())
    self.assertEqual(about["rule"]["name"], "mean")

  def test_ram_takes_each_change_from_the_expert_that_made_it(self):
    to = self.folder / "merged"
    rule = MergeRule(name="ram", changed="threshold", threshold=0.0)
    whole = merge_folders(self.base, self.experts, to, rule)
    for found in whole.values():
      self.assertGreater(found.unique, 0)
    expected = jax.tree.map(
      lambda base, a, b: jnp.where(a != base, a, b), self.params, *self.trained
    )
    shared = sum(found.shared for found in whole.values())
    self.assertEqual(shared, 0)
    jax.tree.map(np.testing.assert_array_equal, self.read(to), expected)

  @parameterized.parameters(*RULES)
  def test_every_rule_writes_a_model_in_any_order_of_experts(self, name):
    rule = MergeRule(name=name)
    one, other = self.folder / "one", self.folder / "other"
    merge_folders(self.base, self.experts, one, rule)
    merge_folders(self.base, self.experts[::-1], other, rule)
    file = tensor_files.SINGLE_FILE
    self.assertEqual((one / file).read_bytes(), (other / file).read_bytes())

  def test_the_result_is_as_exact_as_the_experts(self):
    base = written(self.folder / "half", self.params, dtype="bfloat16")
    to = self.folder / "merged"
    merge_folders(base, self.experts, to, MergeRule(name="mean"))
    described = json.loads((to / "config.json").read_text())
    self.assertEqual(described["torch_dtype"], "float32")
    self.read(to)

  def test_a_head_that_is_the_embedding_is_left_out_and_another_refused(self):
    def add_head(folder, difference):
      path = folder / tensor_files.SINGLE_FILE
      with tensor_files.TensorFile(path) as file:
        arrays = {
          name: file.read(name, e.shape, (slice(None),) * len(e.shape))
          for name, e in file.entries.items()
        }
      arrays[HEAD] = arrays[EMBEDDING] + np.float32(difference)
      entries = {name: (x.dtype, x.shape) for name, x in arrays.items()}
      tensor_files.write_file(path, entries, arrays.values())

    add_head(self.base, 0)
    to = self.folder / "merged"
    merge_folders(self.base, self.experts[:1], to, MergeRule(name="mean"))
    jax.tree.map(np.testing.assert_array_equal, self.read(to), self.trained[0])
    add_head(self.experts[1], 0.5)
    to = to.with_name("other")
    with self.assertRaisesRegex(CheckpointError, f"{HEAD} in .*expert1"):
      merge_folders(self.base, self.experts, to, MergeRule(name="mean"))
    self.assertFalse(to.exists())

  def test_what_does_not_fit_is_refused_and_leaves_nothing(self):
    rule, to = MergeRule(name="mean"), self.folder / "merged"
    with self.assertRaisesRegex(ConfigError, "names a folder twice"):
      merge_folders(self.base, self.experts[:1] * 2, to, rule)
    with self.assertRaisesRegex(ConfigError, "is there already"):
      merge_folders(self.base, self.experts, self.base, rule)
    small = ModelConfig(**{**vars(MODEL), "mlp_width": 8})
    params = Policy(small, COMPUTE).init(jax.random.key(0))
    other = written(self.folder / "other", params, small)
    with self.assertRaisesRegex(ConfigError, "mlp_width is 8 there and 16"):
      merge_folders(self.base, [other], to, rule)
    broken = self.folder / "broken"
    shutil.copytree(self.experts[0], broken)
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    with self.assertRaisesRegex(CheckpointError, "cut short"):
      merge_folders(self.base, [broken], to, rule)
    with self.assertRaisesRegex(ConfigError, "nothing has no config.json"):
      merge_folders(self.base, [self.folder / "nothing"], to, rule)
    self.assertFalse(to.exists())


if __name__ == "__main__":
  absltest.main()
