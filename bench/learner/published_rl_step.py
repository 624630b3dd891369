"""A complete RL step of the model in the folder BENCH_MODEL.

As `rl_step`, with a prompt of 128 tokens of solved word problems in chat
markup. Tunix reads models of the families Llama and Qwen3.
"""

import numpy as np

from bench import published, tiny
from bench.learner import rl_step
from bench.line_peer import Pythons


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  loss = tiny.loss_config(token_chunk=0)
  policy, learner, params = published.load(loss)
  text = "".join(
    f"{prompt}{answers[1]}<|im_end|>\n"
    for prompt, answers in published.questions(rl_step.PROMPT // 16)
  )
  ids = published.tokenizer().encode(text, add_special_tokens=False).ids
  prompt = np.array(ids[-rl_step.PROMPT :], np.int32)
  return rl_step.compared(
    rl_step.Steps(policy, learner, params, prompt, loss),
    pairs,
    pythons,
    lambda folder: folder.symlink_to(published.folder()),
  ) | {"model": published.folder().name}
