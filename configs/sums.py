r"""A published model learns sums of reasoning-gym, which are answered in text.

  python -m launch.train --config=configs/sums.py:FOLDER

An untouched model writes a sentence, and only the number alone is right. So 64
demonstrations, half of them with another item's answer, show the form; RL
learns the rest. A question of test is in no training.
"""

from configs import environments, smollm2


def get_config(folder: str = smollm2.FOLDER):
  """`folder` is the text after the colon on the command line."""
  c = smollm2.get_config(folder)
  c.name = "sums"
  with c.unlocked():
    c.environments.sums = environments.entry(
      "agentrl_jax.env.adapters.reasoning_gym:ReasoningGym",
      options={
        "dataset": "chain_sum",
        "config": {"min_terms": 2, "max_terms": 2, "max_digits": 1},
      },
      mistakes={"wrong": 0.5},
    )
    c.tasks.weights.sums = 1.0
  c.tasks.names = ("sums",)
  c.warm_start.update(epochs=1, num_demonstrations=64)
  c.warm_start.optimizer.update(learning_rate=2e-5, warmup_steps=2)
  c.train.steps = 20
  c.evaluation.update(num_tasks=64, num_sampled=64)
  return c
