"""Prints what it takes to read a folder onto eight devices, as JSON.

  XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
    python -m tests.model.hugging_face.reading_program qwen2.5-1.5b 1500000000

Without a published model's name and the bytes of a file it takes a small one;
`experts` is a small one with experts.

peak    bytes that the process held at once beyond what it was left with
file    bytes of the largest file, and how many there are
read_s  seconds, when everything is compiled
equal   whether what was read, and written again, has the same bits
"""

import ctypes
import dataclasses
import filecmp
import gc
import json
import math
import pathlib
import re
import sys
import tempfile
import time

import jax
import ml_dtypes
import numpy as np

from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.config import from_model_config
from agentrl_jax.model.hugging_face.export import Tensors, write_params
from agentrl_jax.model.hugging_face.presets import preset
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from tests.settings import COMPUTE

CONFIG = ModelConfig(
  vocab_size=4096,
  width=512,
  num_layers=5,
  num_heads=8,
  num_kv_heads=4,
  head_dim=64,
  mlp_width=2048,
  tied_embedding=False,
)
EXPERTS = dataclasses.replace(
  CONFIG,
  qk_norm=True,
  num_experts=8,
  experts_per_token=2,
  mlp_width=512,
  sigmoid_router=True,
  shared_experts=1,
  dense_layers=1,
  dense_mlp_width=2048,
)


def resident(key: str) -> int:
  """Bytes; VmHWM of all kinds, at most since the last `forget_peak`."""
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) * 1024


def forget_peak() -> None:
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_of_reading(folder, policy, mesh):
  """And the params; the second time, when everything is compiled already."""
  jax.block_until_ready(read_params(folder, policy, mesh))
  forget_peak()
  libraries = resident("RssFile")
  begun = time.monotonic()
  params = jax.block_until_ready(read_params(folder, policy, mesh))
  seconds, peak = time.monotonic() - begun, resident("VmHWM")
  forget_peak()
  # A crowded machine may have taken pages of libraries back meanwhile.
  left = resident("RssAnon") + max(libraries, resident("RssFile"))
  return peak - left, seconds, params


def write_noise(
  folder: pathlib.Path, config: ModelConfig, file_bytes: int
) -> None:
  """A folder of random numbers, made without a device."""
  rng = np.random.default_rng(0)
  dtype = np.dtype(ml_dtypes.bfloat16)
  entries = Tensors(config, dtype).entries
  sizes = {
    name: of.itemsize * math.prod(shape)
    for name, (of, shape) in entries.items()
  }
  files = dict(tensor_files.split_by_size(sizes, file_bytes))
  folder.mkdir()
  for file, names in files.items():
    shapes = {name: entries[name] for name in names}
    arrays = (
      rng.standard_normal(s, np.float32).astype(t) for t, s in shapes.values()
    )
    tensor_files.write_file(folder / file, shapes, arrays)
  tensor_files.write_index(folder, files, sum(sizes.values()))
  described = from_model_config(config, context=64, dtype="bfloat16")
  (folder / "config.json").write_text(json.dumps(described))


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.glob("*.safetensors"))


def _same(first: pathlib.Path, again: pathlib.Path) -> bool:
  pairs = zip(_files(first), _files(again), strict=True)
  return all(filecmp.cmp(a, b, shallow=False) for a, b in pairs)


def main(name: str = "", file_bytes: str = "24_000_000") -> None:
  small = {"": CONFIG, "experts": EXPERTS}
  config = small[name] if name in small else preset(name)
  axes = {"expert": 2, "fsdp": 2} if config.num_experts else {"fsdp": 4}
  limit = int(file_bytes)
  policy = Policy(config, COMPUTE)
  mesh = sharding.make_mesh(axes | {"tensor": 2})
  with tempfile.TemporaryDirectory() as root:
    first, again = (pathlib.Path(root) / n for n in ("first", "again"))
    write_noise(first, config, limit)
    peak, seconds, params = peak_of_reading(first, policy, mesh)
    write_params(again, params, config, context=64, max_file_bytes=limit)
    found = {
      "peak": peak,
      "file": max(path.stat().st_size for path in _files(first)),
      "read_s": seconds,
      "files": len(_files(first)),
      "equal": _same(first, again),
    }
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main(*sys.argv[1:])
