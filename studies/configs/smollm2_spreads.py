r"""Task normalisation on a published model, where two tasks' spreads differ.

  make real
  python -m launch.sweep --ablation=studies/configs/smollm2_spreads.py --seeds=4

As spreads.py, with SmolLM2-135M-Instruct: word problems answered in text, and a
calculator called in several turns, whose advantages are divided by 4. There is
no warm start: before reinforcement learning all arms and seeds are one model.
"""

from configs import arms, calculator
from configs.smollm2 import FOLDER
from studies.configs import spreads

ARMS = {name: spreads.ARMS[name] for name in ("norm_small", "none_small")}


def get_config(arm: str = "norm_small"):
  """`arm` is the text after the colon on the command line."""
  c = calculator.get_config(FOLDER)
  c.name = "smollm2_spreads"
  with c.unlocked():
    c.environments.calculator = calculator.stories("+", "-", "*")
    c.tasks.weights.calculator = 1.0
  c.tasks.names = ("word_problems", "calculator")
  c.train.steps = 12
  c.advantage.update(keep="all", estimator=spreads.ALTERED)
  c.admission.update(groups_per_step=12, max_concurrent_groups=12)
  c.queue.max_groups = 12
  c.evaluation.update(
    every=0,
    num_tasks_during=64,
    num_sampled_during=64,
    num_tasks=32,
    num_sampled=16,
  )
  return arms.apply_arm(c, ARMS, arm)
