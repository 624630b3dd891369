"""A published model, from the folder that BENCH_MODEL names, and its prompts.

Questions are word problems in chat markup with answers of a few words.
"""

import os
import pathlib

import jax
import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.train.config.loss import LossConfig
from bench import tiny

VARIABLE = "BENCH_MODEL"
_NAMES = ("Ana", "Ben", "Chloe", "David", "Emma", "Farid", "Grace", "Hugo")
_THINGS = ("pens", "apples", "books", "marbles")
_ANSWERS = (
  "{0}",
  "The answer is {0}.",
  "{0} {2}",
  "{1} has {0} {2} left.",
  "{1} has {0} {2}.",
  "The answer is {0} {2}.",
  "{1} now has {0} {2}.",
  "There are {0} {2} left.",
)


def folder() -> pathlib.Path:
  """Returns the model's folder; raises `FileNotFoundError` without one."""
  name = os.environ.get(VARIABLE, "")
  if not (pathlib.Path(name) / "config.json").exists():
    raise FileNotFoundError(
      f"{VARIABLE}={name!r} is no folder with a config.json: name one of a "
      "published model, as Hugging Face has it"
    )
  return pathlib.Path(name).resolve()


def load(loss: LossConfig | None = None):
  """Returns policy, learner and float32 params, with the config's defaults."""
  model, _ = read_model(folder())
  compute = ComputeConfig()
  policy, learner = tiny.make_learner(model, compute, loss)
  return policy, learner, read_params(folder(), policy, learner.mesh)


def questions(number: int) -> list[tuple[str, list[str]]]:
  """Writes prompts in ChatML, each with eight answers."""
  rng, written = np.random.default_rng(0), []
  for n in range(number):
    a, b = (int(x) for x in rng.integers(2, 9, 2))
    name, thing = _NAMES[n % 8], _THINGS[n // 8 % 4]
    text = (
      f"{name} has {a + b} {thing} and gives away {b}. How many {thing} are "
      "left? Answer with a number only."
    )
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    written.append((prompt, [x.format(a, name, thing) for x in _ANSWERS]))
  return written


def tokenizer() -> Tokenizer:
  """Returns the model's own tokenizer."""
  return Tokenizer.from_file(str(folder() / "tokenizer.json"))


def product_gflops(times, width: int) -> float:
  """Returns operations per CPU second of square products, in billions."""
  return 2e-9 * width**3 / float(np.median([each.cpu for each in times]))


def num_params(params) -> int:
  """Counts the model's params."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
