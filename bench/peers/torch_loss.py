"""Peer of `bench.learner.losses`: token log-probabilities in plain torch.

Runs in its own virtual environment: reads inputs.npz from a folder, writes
results.npz there and prints torch's version. Then every line names a
measurement, which the peer answers with the seconds by wall clock and by
processor time.
"""

import pathlib
import sys
import time

import numpy as np
import torch


def main() -> None:
  """Answers every line on standard input with one measurement."""
  folder = pathlib.Path(sys.argv[1])
  torch.set_num_threads(int(sys.argv[2]))
  with np.load(folder / "inputs.npz") as inputs:
    hidden = torch.tensor(inputs["hidden"], requires_grad=True)
    output = torch.tensor(inputs["output"], requires_grad=True)
    token = torch.tensor(inputs["token"])

  def loss() -> float:
    hidden.grad = output.grad = None
    logprob = torch.log_softmax(hidden @ output, dim=-1)
    mean = -logprob.gather(-1, token[:, None]).mean()
    mean.backward()
    return float(mean.detach())

  @torch.no_grad()
  def product() -> None:
    hidden @ output

  value = loss()
  np.savez(
    folder / "results.npz",
    loss=value,
    hidden=hidden.grad.numpy(),
    output=output.grad.numpy(),
  )
  product()
  print(torch.__version__, flush=True)  # noqa: T201 - the protocol
  for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    {"loss": loss, "product": product}[line.strip()]()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, flush=True)  # noqa: T201


if __name__ == "__main__":
  main()
