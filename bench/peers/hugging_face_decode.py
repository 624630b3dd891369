"""Peer of `bench.rollout.decode`: `generate` of transformers.

Reads a model and prompts.npy from a folder and prints its versions. Then every
line has a number of prompts, to which the peer generates greedily, and may have
a number of tokens. It writes the tokens to hugging_face_<number>.npy and
answers the line with the seconds taken.
"""

import os
import pathlib
import sys
import time

import numpy as np
import torch
import transformers

ANSWER = 128


def main() -> None:
  """Answers every line on standard input with one measurement."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  torch.set_num_threads(int(sys.argv[2]))
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder / "model", dtype=torch.float32, attn_implementation="sdpa"
  ).eval()
  model.generation_config.eos_token_id = None  # answers have equal lengths
  prompts = torch.tensor(np.load(folder / "prompts.npy")).long()
  version = f"transformers {transformers.__version__}, torch"
  print(version, torch.__version__, file=answers, flush=True)
  for line in sys.stdin:
    number, answer = (*map(int, line.split()), ANSWER)[:2]
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
      tokens = model.generate(
        prompts[:number],
        attention_mask=torch.ones_like(prompts[:number]),
        max_new_tokens=answer,
        do_sample=False,
      )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    np.save(
      folder / f"hugging_face_{number}.npy",
      tokens[:, prompts.shape[1] :].numpy(),
    )
    print(wall, cpu, file=answers, flush=True)


if __name__ == "__main__":
  main()
