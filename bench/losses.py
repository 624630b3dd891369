"""Token log-probabilities, forwards and backwards, against plain torch.

  python -m bench.losses [--pairs=7]

Work: N=2048 tokens of width D=512 over V=16384 words, float32, mean negative
log-likelihood and its gradient with respect to hidden states and output matrix.
The limit is the arithmetic of the matrix products at the rate of a large one.
Peers run in the same minutes, in turn; what counts is the median of the ratios.
Temporary memory is the compiler's own account.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.losses import (
  chunked_token_logprob,
  token_logprob,
  trained_token_logprob,
)

N, D, V, ROWS = 2048, 512, 16384, 8
TRAINED = 0.22  # share of tokens that a policy sampled, as in agents' episodes
PEER_PYTHON = pathlib.Path(".venv-peers/bin/python")
PEER_DEADLINE_S = 120


def make_losses(token_BT, mask_BT):
  """The forms that are compared, by name; each maps (hidden, output)."""

  def plain(hidden, output):
    return -token_logprob(hidden @ output, token_BT).mean()

  def chunked(hidden, output):
    return -chunked_token_logprob(hidden, output, token_BT, chunk_size=32)[
      0
    ].mean()

  def trained(hidden, output):
    logprob, _ = trained_token_logprob(
      hidden, output, token_BT, mask_BT, chunk_size=32
    )
    return -logprob.sum() / mask_BT.sum()

  return {"plain": plain, "chunked": chunked, "trained": trained}


def seconds_of(function, *arguments) -> float:
  """Wall seconds of one call, compiled before."""
  begun = time.perf_counter()
  jax.block_until_ready(function(*arguments))
  return time.perf_counter() - begun


class TorchPeer:
  """Plain torch in a process and an environment of its own."""

  def __init__(self, inputs: dict[str, np.ndarray], folder: str):
    path = os.path.join(folder, "inputs.npz")
    np.savez(path, **inputs)
    self._process = subprocess.Popen(
      [
        str(PEER_PYTHON),
        "bench/peers/torch_loss.py",
        path,
        str(len(os.sched_getaffinity(0))),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      # Spinning threads would slow whoever runs next.
      env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
    )
    self.loss = float(self._process.stdout.readline())

  def seconds(self) -> float:
    """Of one forward and backward pass."""
    self._process.stdin.write("go\n")
    self._process.stdin.flush()
    return float(self._process.stdout.readline())

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait(PEER_DEADLINE_S)


def main() -> None:
  """Prints one JSON object: seconds, ratios to torch, share of the limit."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--pairs", type=int, default=7)
  pairs = parser.parse_args().pairs
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(ROWS, N // ROWS, D)).astype(np.float32)
  output = (rng.normal(size=(D, V)) * D**-0.5).astype(np.float32)
  token = rng.integers(0, V, (ROWS, N // ROWS))
  mask = rng.random(token.shape) < TRAINED
  programs = {
    name: jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    .lower(hidden, output)
    .compile()
    for name, loss in make_losses(token, mask).items()
  }
  for program in programs.values():
    jax.block_until_ready(program(hidden, output))
  gemm = jax.jit(jnp.matmul)
  flat = hidden.reshape(N, D)
  jax.block_until_ready(gemm(flat, output))
  times: dict[str, list[float]] = {"gemm": []}
  with tempfile.TemporaryDirectory() as folder:
    peer = _peer(flat, output, token.reshape(N), folder)
    if peer:
      value = float(programs["plain"](hidden, output)[0])
      np.testing.assert_allclose(value, peer.loss, rtol=1e-5)
    for _ in range(pairs):
      for name, program in programs.items():
        times.setdefault(name, []).append(seconds_of(program, hidden, output))
      times["gemm"].append(seconds_of(gemm, flat, output))
      if peer:
        times.setdefault("torch", []).append(peer.seconds())
    if peer:
      peer.close()
  sys.stdout.write(json.dumps(_result(times, programs), indent=2) + "\n")


def _peer(hidden, output, token, folder) -> TorchPeer | None:
  if not PEER_PYTHON.exists():
    sys.stderr.write(
      f"{PEER_PYTHON} is not there, so torch is left out; `make bench` makes "
      "it\n"
    )
    return None
  inputs = {"hidden": hidden, "output": output, "token": token}
  return TorchPeer(inputs, folder)


def _result(times, programs) -> dict[str, object]:
  median = {name: statistics.median(each) for name, each in times.items()}
  memory = {
    name: program.memory_analysis().temp_size_in_bytes / 2**20
    for name, program in programs.items()
  }
  limit = 3 * median["gemm"]  # one product forwards, two backwards
  result = {
    "work": {"N": N, "D": D, "V": V, "dtype": "float32", "trained": TRAINED},
    "load_before": os.getloadavg()[0],
    "jax": jax.__version__,
    "milliseconds": {name: 1e3 * s for name, s in median.items()},
    "temporary_mib": memory,
    "memory_against_plain": memory["chunked"] / memory["plain"],
    "share_of_gemm_limit": {n: limit / median[n] for n in ("plain", "chunked")},
  }
  if "torch" in times:
    result["times_faster_than_torch"] = {
      name: statistics.median(
        t / own for t, own in zip(times["torch"], times[name], strict=True)
      )
      for name in programs
    }
  return result


if __name__ == "__main__":
  main()
