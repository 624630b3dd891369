r"""Task normalisation on a published model, where two tasks' spreads differ.

  make real
  python -m launch.sweep --ablation=studies/configs/smollm2_spreads.py

As spreads.py, with SmolLM2-135M-Instruct: word problems answered in text, and a
calculator called in several turns, whose advantages are divided by 4. There is
no warm start: before reinforcement learning all arms and seeds are one model.
"""

from configs import arms, calculator
from configs.experiment import ExperimentPlan
from configs.smollm2 import FOLDER
from studies.configs import spreads

ARMS = {name: spreads.ARMS[name] for name in ("norm_small", "none_small")}

# Written after one run of norm_small of seed 0, of 16 updates: it won 28 % of
# 64 calculator tasks before them and 66 % after them, greedily.
PLAN = ExperimentPlan(
  question=(
    "Does a published model learn a task whose advantages are a quarter as "
    "large more slowly without task normalisation?"
  ),
  mode="training, equal episodes",
  task=calculator.NAME,
  contrasts=("none_small - norm_small",),
  seeds=4,
  least_difference=11.0,
  spread=5.0,
  spread_from="no run: 576 episodes of either arm at 35 %, in groups of 8",
  num_tasks=0,
  higher="Task normalisation slows the disadvantaged task.",
  lower="Task normalisation helps the disadvantaged task, by so much in so "
  "many updates.",
  neither="At this ratio of spreads normalisation makes no difference of "
  "least_difference points in twelve updates of this model.",
)


def get_config(arm: str = "norm_small"):
  """`arm` is the text after the colon on the command line."""
  c = calculator.get_config(FOLDER)
  c.name = "smollm2_spreads"
  c.tasks.names = ("word_problems", calculator.NAME)
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
