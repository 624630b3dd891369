"""Plain torch as a peer, in a process and an environment of its own."""

import os
import pathlib
import subprocess

import numpy as np

from bench.timing import Times

SCRIPT = pathlib.Path(__file__).parent / "peers" / "torch_loss.py"
DEADLINE_S = 120


class TorchPeer:
  """Computes a loss and its gradients once, and again whenever asked."""

  def __init__(
    self,
    python: pathlib.Path,
    inputs: dict[str, np.ndarray],
    folder: pathlib.Path,
  ):
    np.savez(folder / "inputs.npz", **inputs)
    self._process = subprocess.Popen(
      [
        str(python),
        str(SCRIPT),
        str(folder),
        str(len(os.sched_getaffinity(0))),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      # Spinning threads would slow whoever runs next.
      env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
    )
    self.version = self._process.stdout.readline().strip()
    with np.load(folder / "results.npz") as results:
      self.loss = float(results["loss"])
      self.gradients = results["hidden"], results["output"]

  def loss_times(self) -> Times:
    """Of one forward and backward pass."""
    return self._ask("loss")

  def product_times(self) -> Times:
    """Of the product of hidden states and output matrix alone."""
    return self._ask("product")

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait(DEADLINE_S)

  def _ask(self, what: str) -> Times:
    self._process.stdin.write(what + "\n")
    self._process.stdin.flush()
    return Times(*map(float, self._process.stdout.readline().split()))
