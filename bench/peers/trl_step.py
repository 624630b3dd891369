"""Peer of `bench.learner.published`: transformers, as TRL's trainer runs it.

Prompts are padded on the left and answers on the right, eight rows at a time
are a micro-batch, and TRL's own head computes log-probabilities and entropies.
Loss, clipping and optimizer are those of `hugging_face_step`, from which it
differs in nothing else; gradient checkpointing, TRL's default, is off.
"""

import numpy as np
import torch
import trl
from hugging_face_step import answer_lines, apply, gains, start
from trl.trainer.utils import add_fused_lm_head

ROWS = 8


def micro_batches(arrays) -> list[dict[str, torch.Tensor]]:
  """Cuts rows of one turn each to micro-batches, padded as TRL pads."""
  return [
    padded({name: x[begin : begin + ROWS] for name, x in arrays.items()})
    for begin in range(0, len(arrays["token"]), ROWS)
  ]


def padded(rows) -> dict[str, torch.Tensor]:
  """Pads prompts on the left to the longest, and answers on the right."""
  mask = rows["mask"]
  begin = mask.int().argmax(dim=1)
  end = mask.shape[1] - mask.flip(1).int().argmax(dim=1)
  prompt, answer = int(begin.max()), int((end - begin).max())
  shape = len(mask), prompt + answer
  batch = {name: torch.zeros(shape, dtype=x.dtype) for name, x in rows.items()}
  seen = torch.zeros(shape, dtype=torch.long)
  for row, (first, last) in enumerate(zip(begin, end, strict=True)):
    to = slice(int(prompt - first), int(prompt - first + last))
    seen[row, to] = 1
    for name, x in rows.items():
      batch[name][row, to] = x[row, :last]
  return {name: x[:, prompt:] for name, x in batch.items()} | {
    "token": batch["token"],
    "seen": seen,
  }


def main() -> None:
  """Answers every line on standard input with one measurement."""
  folder, model, arrays, optimizer, answers = start()
  add_fused_lm_head(model, outputs=("log_probs", "entropy"))
  batches = micro_batches(arrays)
  num_sampled = int(arrays["mask"].sum())

  def update() -> tuple[float, float]:
    loss = 0.0
    for batch in batches:
      answer = batch["mask"].shape[1]
      labels = batch["token"].masked_fill(batch["seen"] == 0, -100)
      labels[:, :-answer] = -100
      output = model(
        input_ids=batch["token"],
        attention_mask=batch["seen"],
        labels=labels,
        fused_lm_head=True,
      )
      gain = gains(
        output.log_probs[:, -answer:],
        batch["behavior_logprob"],
        batch["advantage"],
      )
      value = -gain[batch["mask"]].sum() / num_sampled
      value.backward()
      loss += float(value.detach())
    return loss, apply(model, optimizer)

  loss, norm = update()
  tokens = sum(batch["token"].numel() for batch in batches)
  np.savez(folder / "trl_results.npz", loss=loss, norm=norm, tokens=tokens)
  version = f"trl {trl.__version__}, torch"
  print(version, torch.__version__, file=answers, flush=True)
  answer_lines({"update": update}, answers)


if __name__ == "__main__":
  main()
