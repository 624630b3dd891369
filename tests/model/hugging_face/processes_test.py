"""Two processes of four devices share the reading, and one of them writes."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import jax
import pytest
from absl.testing import absltest

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.policy import Policy
from tests.programs import ROOT
from tests.settings import COMPUTE

CONFIG = ModelConfig(
  vocab_size=1024,
  width=128,
  num_layers=4,
  num_heads=8,
  num_kv_heads=2,
  head_dim=16,
  mlp_width=256,
  tied_embedding=False,
  qkv_bias=True,
)
DEADLINE_S = 240


@pytest.mark.full
class ProcessesTest(absltest.TestCase):
  def test_each_reads_its_own_and_the_files_come_back(self):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      params = Policy(CONFIG, COMPUTE).init(jax.random.key(0))
      write_params(
        root / "first", params, CONFIG, context=64, max_file_bytes=1_000_000
      )
      for found in _run_two(root):
        # Half of the matrices, and the small vectors that all devices hold.
        self.assertLess(found["read"], 0.52 * found["files"])
      first, again = (
        {p.name: p.read_bytes() for p in (root / n).iterdir()}
        for n in ("first", "again")
      )
      self.assertGreater(len(first), 3)
      self.assertEqual(first, again)


def _run_two(root: pathlib.Path) -> list[dict]:
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
  }
  processes = [
    subprocess.Popen(
      [
        sys.executable,
        "-m",
        "tests.model.hugging_face.processes_program",
        address,
        str(index),
        str(root),
      ],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(2)
  ]
  found = []
  for process in processes:
    said, failed = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, failed[-3000:]
    found.append(json.loads(said.splitlines()[-1]))
  return found
