"""Saves to a bucket of a storage emulator and restores from it; prints what."""

import dataclasses
import json
import os
import socket
import sys

import jax
import numpy as np
from etils import epath

from agentrl_jax.train.weights.checkpoint import Checkpoints
from tests.train import small

BUCKET = "bucket"


def _serve() -> object:
  """The emulator, in memory; who reads buckets is told of it."""
  from gcp_storage_emulator.server import create_server

  with socket.socket() as found:
    found.bind(("localhost", 0))
    port = found.getsockname()[1]
  server = create_server(
    "localhost", port, in_memory=True, default_bucket=BUCKET
  )
  server.start()
  for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
    os.environ[name] = f"http://localhost:{port}"
  os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "anyone"
  return server


def main() -> None:
  """Two steps, one of which was cut off before it was committed."""
  server = _serve()
  policy, learner = small.make_learner()
  first = learner.init(policy.init(jax.random.key(0)))
  second = dataclasses.replace(first, version=first.version + 1)
  path = f"gs://{BUCKET}/runs/one/rl"
  checkpoints = Checkpoints(path, keep=2)
  for state in (first, second):
    checkpoints.save(state, {"at": int(state.version)})
  checkpoints.close()
  marks = [p.name for p in epath.Path(f"{path}/1").iterdir()]
  # As a kill would: everything is there but the file that says so.
  epath.Path(f"{path}/1/commit_success.txt").unlink()
  again = Checkpoints(path, keep=2)
  restored, position = again.restore(learner.abstract_state())
  same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), restored, first)
  found = {
    "marks": marks,
    "steps": again.steps(),
    "position": position,
    "same": all(jax.tree.leaves(same)),
  }
  server.stop()
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
