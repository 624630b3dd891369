"""Prints what it takes to read a folder onto eight devices, as JSON.

peak    bytes that the process held at once beyond what it was left with
file    bytes of the largest file, and how many there are
equal   whether what was read, and written again, has the same bits
"""

import ctypes
import gc
import json
import pathlib
import re
import sys
import tempfile

import jax

from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.export import write_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.model.pretrained import read_params

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
FILE_BYTES = 24_000_000
MESH = {"fsdp": 4, "tensor": 2}


def resident(key: str) -> int:
  """Bytes; VmRSS now, VmHWM at most since the last `forget_peak`."""
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
  params = jax.block_until_ready(read_params(folder, policy, mesh))
  peak = resident("VmHWM")
  forget_peak()
  return peak - resident("VmRSS"), params


def written(folder, params, config) -> dict[str, bytes]:
  write_params(folder, params, config, context=64, max_file_bytes=FILE_BYTES)
  return {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}


def main() -> None:
  policy = Policy(CONFIG)
  mesh = sharding.make_mesh(MESH)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    first = written(root / "first", policy.init(jax.random.key(0)), CONFIG)
    peak, params = peak_of_reading(root / "first", policy, mesh)
    found = {
      "peak": peak,
      "file": max(len(content) for content in first.values()),
      "files": len(first),
      "equal": first == written(root / "again", params, CONFIG),
    }
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
