r"""A published base model, Gemma 3 270M, learns the same word problems.

  make real MODEL=gemma3-270m
  python -m launch.train --config=configs/gemma3.py:FOLDER --config.seed=1

configs/smollm2.py for a model that was never taught to chat. It has no chat
template, so `configs/gemma3.jinja` shows it one solved story before each
question. It answers with a computation, since it cannot guess results.
"""

import pathlib

from configs import smollm2

FOLDER = "models/gemma-3-270m"


def get_config(folder: str = FOLDER):
  """`folder` is the text after the colon on the command line."""
  c = smollm2.get_config(folder)
  c.name = "gemma3"
  c.chat.template = str(pathlib.Path(__file__).with_suffix(".jinja"))
  c.environments.word_problems.options.instruction = ""
  # With all params and a rate of 2e-5, success rose from 11 to 33 % in eight
  # updates and fell to 2 %: the model had unlearned what 5 + 1 is.
  c.lora.rank = 16
  c.optimizer.learning_rate = 2e-4
  c.train.steps = 24
  # With 256, two fifths of a run's time would go into its four evaluations.
  c.evaluation.update(num_tasks=128, num_sampled=128)
  return c
