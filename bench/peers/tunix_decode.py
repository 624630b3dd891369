"""Peer of `bench.rollout.decode`: Tunix's vanilla sampler.

Reads a model and prompts.npy from a folder and prints its versions. Then every
line has a number of prompts, to which the peer generates greedily, and may have
a number of tokens. It writes the tokens to tunix_<number>.npy and answers the
line with the seconds taken.
"""

import os
import pathlib
import sys
import time

import jax
import numpy as np
import tunix
from jax.sharding import Mesh
from tunix.generate import sampler as tunix_sampler
from tunix_rl_step import NO_TOKEN, make_model
from words import make_tokenizer, text_of

ANSWER = 128


def main() -> None:
  """Answers every line on standard input with one measurement."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
  model, vocab_size = make_model(folder / "model", mesh)
  prompts = np.load(folder / "prompts.npy")
  length = prompts.shape[1]
  config = model.config
  sampler = tunix_sampler.Sampler(
    model,
    make_tokenizer(vocab_size),
    tunix_sampler.CacheConfig(
      cache_size=length + ANSWER,
      num_layers=config.num_layers,
      num_kv_heads=config.num_kv_heads,
      head_dim=config.head_dim,
    ),
  )
  texts = [text_of(prompt) for prompt in prompts]
  version = getattr(tunix, "__version__", "0.1.7")
  print("tunix", version, "jax", jax.__version__, file=answers, flush=True)
  for line in sys.stdin:
    number, answer = (*map(int, line.split()), ANSWER)[:2]
    wall, cpu = time.perf_counter(), time.process_time()
    found = sampler(
      texts[:number],
      max_generation_steps=answer,
      max_prompt_length=length,
      eos_tokens=[NO_TOKEN],
      temperature=0.0,
    )
    tokens = np.array([np.asarray(row) for row in found.tokens])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    np.save(folder / f"tunix_{number}.npy", tokens)
    print(wall, cpu, file=answers, flush=True)


if __name__ == "__main__":
  main()
