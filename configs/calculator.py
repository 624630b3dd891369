r"""A published model learns to call a calculator, in several turns.

  python -m launch.train --config=configs/calculator.py:FOLDER

configs/smollm2.py with a second task: numbers up to 99, which a model of this
size cannot add up, and the tools `calculate` and `answer`. An untouched model
writes no calls of its own accord, so a grammar holds it to well-formed ones;
which tool, with which arguments, in which order, is learned.
"""

import pathlib

from configs import environments, smollm2

NAME = "calculator"


def get_config(folder: str = smollm2.FOLDER):
  """`folder` is the text after the colon on the command line."""
  c = smollm2.get_config(folder)
  c.name = NAME
  with c.unlocked():
    c.environments[NAME] = environments.entry(
      "environments.word_problems.environment:WordProblems",
      options={
        "steps": (1, 1),
        "largest": 99,
        "calculator": True,
        "instruction": "Call calculate first, then answer.",
        "result": "The result is {}. Call answer with the number.",
        "max_turns": 3,
      },
    )
    c.tasks.weights[NAME] = 1.0
  c.tasks.names = (NAME,)
  c.chat.template = str(pathlib.Path(__file__).with_suffix(".jinja"))
  c.chat.compact_calls = True
  c.sampling.calls = "required"
  # At 0.7 nearly all attempts of a group choose the same operator.
  c.sampling.temperature = 1.0
  c.train.update(steps=16, row_length=576)
  # Without an answer at the end of its turns an episode has failed.
  c.advantage.incomplete_reward = 0.0
  c.episode.update(max_turns=3, max_tokens=288, max_answer_tokens=48)
  c.admission.update(groups_per_step=8, max_concurrent_groups=8)
  c.queue.max_groups = 8
  # New in a prompt are 47 tokens, in a result 27.
  c.engine.update(context=288, prefill_chunks=(28, 48))
  c.evaluation.update(
    num_tasks=64, num_sampled=64, num_tasks_during=32, num_sampled_during=0
  )
  return c
