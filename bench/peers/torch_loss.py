"""The peer of `bench.losses`: token log-probabilities in plain torch.

Runs in an environment of its own and speaks in lines: it prints the loss once,
then the seconds of one forward and backward pass for every line it reads.
"""

import sys
import time

import numpy as np
import torch


def main() -> None:
  """Answers every line on standard input with one measurement."""
  inputs = np.load(sys.argv[1])
  torch.set_num_threads(int(sys.argv[2]))
  hidden = torch.tensor(inputs["hidden"], requires_grad=True)
  output = torch.tensor(inputs["output"], requires_grad=True)
  token = torch.tensor(inputs["token"])

  def step() -> float:
    hidden.grad = output.grad = None
    logprob = torch.log_softmax(hidden @ output, dim=-1)
    loss = -logprob.gather(-1, token[:, None]).mean()
    loss.backward()
    return float(loss.detach())

  print(step(), flush=True)  # noqa: T201 - the protocol
  for _ in sys.stdin:
    begun = time.perf_counter()
    step()
    print(time.perf_counter() - begun, flush=True)  # noqa: T201


if __name__ == "__main__":
  main()
