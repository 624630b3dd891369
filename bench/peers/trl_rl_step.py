"""Peer of `bench.learner.rl_step`: TRL's GRPOTrainer.

Reads a model and prompt.npy from a folder and prints its versions. Then takes
one step of the trainer for every line and answers with the seconds taken.
"""

import os
import pathlib
import sys
import time

import datasets
import numpy as np
import torch
import transformers
import trl
from words import make_tokenizer, rewards, text_of

ATTEMPTS, ANSWER = 8, 128


class Turns(transformers.TrainerCallback):
  """Lets a step begin when a line comes, and tells how long it took."""

  def __init__(self, answers):
    self._answers = answers

  def on_step_begin(self, args, state, control, **others):
    """Waits for the line."""
    if not sys.stdin.readline():
      os._exit(0)  # nothing is wanted any more; nothing is worth saving
    self._began = time.perf_counter(), time.process_time()

  def on_step_end(self, args, state, control, **others):
    """Answers it."""
    wall, cpu = self._began
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, file=self._answers, flush=True)


def main() -> None:
  """Trains until nobody asks any more."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  torch.set_num_threads(int(sys.argv[2]))
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder / "model", dtype=torch.float32, attn_implementation="sdpa"
  )
  prompt = np.load(folder / "prompt.npy")

  def reward(completions, completion_ids, **others):
    if any(len(ids) != ANSWER for ids in completion_ids):
      raise RuntimeError(f"an answer is not of {ANSWER} tokens")
    return rewards(completions)

  trainer = trl.GRPOTrainer(
    model=model,
    processing_class=make_tokenizer(model.config.vocab_size),
    reward_funcs=reward,
    train_dataset=datasets.Dataset.from_list(
      [{"prompt": text_of(prompt)}] * 64
    ),
    callbacks=[Turns(answers)],
    args=trl.GRPOConfig(
      output_dir=str(folder / "trl"),
      use_cpu=True,
      bf16=False,
      gradient_checkpointing=False,
      per_device_train_batch_size=ATTEMPTS,
      num_generations=ATTEMPTS,
      steps_per_generation=1,
      max_completion_length=ANSWER,
      generation_kwargs={"min_new_tokens": ANSWER},
      beta=0.0,
      learning_rate=1e-5,
      max_steps=10**6,
      logging_steps=10**6,
      save_strategy="no",
      report_to=[],
      disable_tqdm=True,
    ),
  )
  version = f"trl {trl.__version__}, transformers {transformers.__version__}"
  print(version, "torch", torch.__version__, file=answers, flush=True)
  trainer.train()


if __name__ == "__main__":
  main()
