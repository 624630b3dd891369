"""One of two processes that read a folder and write it again, as JSON.

python -m tests.model.hugging_face.processes_program ADDRESS INDEX FOLDER

read   bytes that this process took out of the files
files  bytes of the files
"""

import json
import pathlib
import sys

import jax

from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.policy import Policy
from tests.settings import COMPUTE


def main(address: str, index: str, folder: str) -> None:
  jax.distributed.initialize(address, num_processes=2, process_id=int(index))
  taken = []
  read = TensorFile.read

  def counted(*args, **kwargs):
    part = read(*args, **kwargs)
    taken.append(part.nbytes)
    return part

  TensorFile.read = counted
  first = pathlib.Path(folder) / "first"
  config, _ = read_model(first)
  policy, mesh = (
    Policy(config, COMPUTE),
    sharding.make_mesh({"fsdp": 4, "tensor": 2}),
  )
  params = read_params(first, policy, mesh)
  write_params(
    pathlib.Path(folder) / "again",
    params,
    config,
    context=64,
    max_file_bytes=1_000_000,
  )
  files = sum(path.stat().st_size for path in first.glob("*.safetensors"))
  sys.stdout.write(json.dumps({"read": sum(taken), "files": files}) + "\n")


if __name__ == "__main__":
  main(*sys.argv[1:])
