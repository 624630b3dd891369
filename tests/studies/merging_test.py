"""Exported models are merged by tensor, beside the small files of the base."""

import json

import numpy as np

from agentrl_jax.model.hugging_face import tensor_files
from studies.merge_rules import MergeRule
from studies.merging import merge_folders, overlap_line


def exported(folder, *numbers):
  folder.mkdir()
  (folder / "config.json").write_text("{}")
  array = np.array(numbers, np.float32)
  entries = {"w": (array.dtype, array.shape)}
  tensor_files.write_file(folder / "model.safetensors", entries, [array])
  return folder


def test_the_mean_of_two_models_has_the_base_s_files(tmp_path):
  base = exported(tmp_path / "base", 1.0, 1.0)
  experts = [
    exported(tmp_path / "a", 2.0, 1.0),
    exported(tmp_path / "b", 4.0, 3.0),
  ]
  to = tmp_path / "merged"
  merge_folders(base, experts, to, MergeRule(name="mean"))
  assert json.loads((to / "config.json").read_text()) == {}
  with tensor_files.TensorFile(to / "model.safetensors", None) as file:
    found = file.read("w", (2,), (slice(None),))
  np.testing.assert_array_equal(found, [3.0, 2.0])
  assert overlap_line(to) == (
    "a changed 50.0%, 100.0% of it with another; "
    "b changed 100.0%, 50.0% of it with another"
  )
