"""Plain torch as a peer, in its own process and virtual environment."""

import pathlib

import numpy as np

from bench.line_peer import LinePeer
from bench.timing import Times


class TorchPeer:
  """Computes a loss and its gradients, once at start and per request."""

  def __init__(
    self,
    python: pathlib.Path,
    inputs: dict[str, np.ndarray],
    folder: pathlib.Path,
  ):
    np.savez(folder / "inputs.npz", **inputs)
    self._peer = LinePeer(python, "torch_loss.py", folder)
    self.version = self._peer.version
    with np.load(folder / "results.npz") as results:
      self.loss = float(results["loss"])
      self.gradients = results["hidden"], results["output"]

  def loss_times(self) -> Times:
    """Times one forward and backward pass."""
    return self._peer.ask("loss")

  def product_times(self) -> Times:
    """Times the product of hidden states and output matrix."""
    return self._peer.ask("product")

  def close(self) -> None:
    """Ends the process."""
    self._peer.close()
