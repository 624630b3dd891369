"""Peer of `bench.learner.train_step`: transformers, and AdamW of torch.

Reads a model and micro_batch.npz from a folder, writes results.npz and prints
its versions. Then answers every line:

- clipped: the update of our learner, with the same loss;
- cross_entropy: the same update with the loss that comes with the model;
- product: one 2048 x 2048 product, for torch's rate on this machine.
"""

import os
import pathlib
import sys
import time

import numpy as np
import torch
import transformers

CLIP, RATE, CLIP_NORM = 0.2, 1e-5, 1.0


def clipped_loss(model, micro_batch):
  """Clipped surrogate, mean over the tokens on the mask."""
  logits = model(micro_batch["token"]).logits[:, :-1]
  token = micro_batch["token"][:, 1:, None]
  logprob = torch.log_softmax(logits, dim=-1).gather(-1, token)[..., 0]
  behavior, advantage, mask = (
    micro_batch[name][:, 1:]
    for name in ("behavior_logprob", "advantage", "mask")
  )
  # Padding comes after what counts: no token sees it.
  return -gains(logprob, behavior, advantage)[mask].mean()


def gains(logprob, behavior, advantage):
  """Clipped gains of tokens, before they are reduced."""
  ratio = torch.exp(logprob - behavior)
  clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
  return torch.minimum(ratio * advantage, clipped * advantage)


def cross_entropy(model, micro_batch):
  """Returns the loss that transformers computes by itself."""
  return model(micro_batch["token"], labels=micro_batch["token"]).loss


def start():
  """Returns folder, model, micro-batch, optimizer and the file of answers."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  torch.set_num_threads(int(sys.argv[2]))
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder / "model", dtype=torch.float32, attn_implementation="sdpa"
  )
  model.train()
  with np.load(folder / "micro_batch.npz") as arrays:
    micro_batch = {name: torch.tensor(arrays[name]) for name in arrays}
  micro_batch["token"] = micro_batch["token"].long()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=RATE, weight_decay=0.01, fused=True
  )
  return folder, model, micro_batch, optimizer, answers


def apply(model, optimizer) -> float:
  """Clips the gradient and makes the step; returns the norm."""
  norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
  optimizer.step()
  optimizer.zero_grad(set_to_none=True)
  return float(norm)


def answer_lines(work, answers) -> None:
  """Does the work that each line names, and answers with its seconds."""
  for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    work[line.strip()]()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, file=answers, flush=True)


def main() -> None:
  """Answers every line on standard input with one measurement."""
  folder, model, micro_batch, optimizer, answers = start()

  def update(loss) -> tuple[float, float]:
    value = loss(model, micro_batch)
    value.backward()
    return float(value.detach()), apply(model, optimizer)

  a, b = torch.randn(2, 2048, 2048)
  work = {
    "clipped": lambda: update(clipped_loss),
    "cross_entropy": lambda: update(cross_entropy),
    "product": lambda: a @ b,
  }
  loss, norm = update(clipped_loss)
  loss_after = float(clipped_loss(model, micro_batch).detach())
  np.savez(folder / "results.npz", loss=loss, norm=norm, loss_after=loss_after)
  version = f"transformers {transformers.__version__}, torch"
  print(version, torch.__version__, file=answers, flush=True)
  answer_lines(work, answers)


if __name__ == "__main__":
  main()
