"""MXFP4 weights are read as transformers dequantises them, bit for bit."""

import json
import pathlib
import tempfile
import unittest

import ml_dtypes
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import CheckpointError
from agentrl_jax.hugging_face_files import read_object
from agentrl_jax.model.hugging_face import mxfp4
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.tensor_files import INDEX_FILE, TensorFile
from tests.model.hugging_face import families

safetensors = families.safetensors
NUM, WIDTH, OUTPUTS = 3, 64, 10  # experts, inputs and outputs of each
ALL = slice(None)


def packed(seed: int = 0, *, largest: int = 252):
  """Random blocks and scales, with each byte that there is."""
  rng = np.random.default_rng(seed)
  blocks = rng.integers(0, 256, (NUM, OUTPUTS, WIDTH // 32, 16), np.uint8)
  scales = rng.integers(0, largest, (NUM, OUTPUTS, WIDTH // 32), np.uint8)
  blocks[0, :8] = np.arange(256, dtype=np.uint8).reshape(8, 2, 16)
  scales[0, 0] = 0, largest
  return blocks, scales


def write(path: pathlib.Path, **arrays: np.ndarray) -> None:
  """A safetensors file, by hand: ours writes no bytes."""
  header, offset = {}, 0
  for name, array in arrays.items():
    kind = "U8" if array.dtype == np.uint8 else "BF16"
    end = offset + array.nbytes
    span = {"data_offsets": [offset, end]}
    header[name] = {"dtype": kind, "shape": list(array.shape)} | span
    offset = end
  text = json.dumps(header).encode()
  data = b"".join(array.tobytes() for array in arrays.values())
  path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def pack(folder: pathlib.Path) -> None:
  """Replaces experts' weights in a folder by random ones in MXFP4."""
  rng = np.random.default_rng(0)
  of: dict[str, str] = {}
  for path in folder.glob("*.safetensors"):
    with safetensors.safe_open(path, framework="pt") as file:
      arrays = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    for name in [n for n in arrays if n.endswith(("up_proj", "down_proj"))]:
      num, inputs, outputs = arrays.pop(name).shape
      groups = (num, outputs, inputs // 32)
      for part, shape, low, high in (
        (mxfp4.BLOCKS, (*groups, 16), 0, 256),
        (mxfp4.SCALES, groups, 118, 124),
      ):
        numbers = rng.integers(low, high, shape, np.uint8)
        arrays[name + part] = families.torch.tensor(numbers)
    safetensors.torch.save_file(arrays, path, metadata={"format": "pt"})
    of |= dict.fromkeys(arrays, path.name)
  (folder / INDEX_FILE).write_text(
    json.dumps({"metadata": {}, "weight_map": of})
  )
  config = read_object(folder / "config.json")
  config["quantization_config"] = {"quant_method": "mxfp4"}
  (folder / "config.json").write_text(json.dumps(config))


class Mxfp4Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def opened(self, **files):
    """Files by their names, as dicts of arrays."""
    for name, arrays in files.items():
      write(self.folder / name, **arrays)
    return [
      self.enterContext(TensorFile(self.folder / name, has_bytes=True))
      for name in files
    ]

  @unittest.skipIf(families.torch is None, families.WITHOUT)
  def test_numbers_are_those_of_transformers(self):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = packed()
    theirs = convert_moe_packed_tensors(
      *map(families.torch.tensor, (blocks, scales))
    )
    theirs = theirs.view(families.torch.uint16).numpy()
    files = self.opened(a={"w_blocks": blocks, "x": theirs[0].view("V2")})
    files += self.opened(b={"w_scales": scales})
    read = dict((name, file) for file, name in mxfp4.unpacked(files))
    self.assertEqual(set(read), {"w", "x"})
    entry = read["w"].entries["w"]
    self.assertEqual(entry.dtype, ml_dtypes.bfloat16)
    self.assertEqual(entry.shape, theirs.shape)
    ours = read["w"].read("w", entry.shape, (ALL,) * 3)
    np.testing.assert_array_equal(ours.view(np.uint16), theirs)
    # A part, as a device has it: of experts, inputs, and every second output.
    part = read["w"].read(
      "w",
      (NUM, WIDTH, OUTPUTS // 2, 2),
      (slice(1, 3), slice(8, 40), slice(2, 4), slice(1, 2)),
    )
    np.testing.assert_array_equal(
      part[..., 0].view(np.uint16), theirs[1:, 8:40, 1::2][..., 2:4]
    )

  @unittest.skipIf(families.torch is None, families.WITHOUT)
  @pytest.mark.slow
  def test_a_folder_is_the_model_that_transformers_dequantises(self):
    described = families.describe("gpt_oss", tied=False)
    described |= {"hidden_size": 64, "intermediate_size": 32}
    model = families.build(described, dtype="bfloat16")
    folder = families.saved(model, self.folder / "a", max_shard_size=40_000)
    pack(folder)
    theirs = families.transformers.AutoModelForCausalLM.from_pretrained(folder)
    wanted = theirs.state_dict()
    name = "model.layers.0.mlp.experts.down_proj"
    self.assertFalse(
      families.torch.equal(wanted[name], model.state_dict()[name])
    )
    policy, params = families.load(folder)
    again = self.folder / "b"
    write_params(again, params, policy.config, context=512, beside=folder)
    self.assertNotIn("quantization_config", read_object(again / "config.json"))
    loaded = families.transformers.AutoModelForCausalLM.from_pretrained(again)
    for name, weight in loaded.state_dict().items():
      self.assertTrue(families.torch.equal(weight, wanted[name]), name)

  def test_damaged_files_are_refused(self):
    blocks, scales = packed()
    for arrays, reason in (
      ({"w_blocks": blocks}, "no file beside it w_scales"),
      ({"w_scales": scales}, "without its blocks"),
      ({"w_blocks": blocks[..., :8], "w_scales": scales}, "are damaged"),
      ({"w_blocks": blocks, "w_scales": scales[:2]}, "are damaged"),
    ):
      with self.assertRaisesRegex(CheckpointError, reason):
        list(mxfp4.unpacked(self.opened(a=arrays)))

  def test_infinite_numbers_are_refused(self):
    blocks, scales = packed(largest=255)
    files = self.opened(a={"w_blocks": blocks, "w_scales": scales})
    ((file, name),) = mxfp4.unpacked(files)
    with self.assertRaisesRegex(CheckpointError, "w in .* NaN or infinity"):
      file.read(name, file.entries[name].shape, (ALL,) * 3)

  def test_bytes_are_refused_elsewhere(self):
    blocks, scales = packed()
    write(self.folder / "a", w_blocks=blocks, w_scales=scales)
    with self.assertRaisesRegex(CheckpointError, "dtype U8.*not quantised"):
      TensorFile(self.folder / "a")
