r"""Published objectives on five tasks, everything else being equal.

  python -m launch.sweep --seeds=3 --config.train.steps=40 \
    --ablation=configs/ablations/objectives_on_five_tasks.py

The arms are those of `objectives.py`, and `agentrl` is `configs/five_tasks.py`.
A cell of 40 updates takes twenty minutes of one core.
"""

from configs import arms, five_tasks
from configs.ablations import objectives

ARMS = objectives.ARMS | {
  "dr_grpo": objectives.ARMS["dr_grpo"]
  | {"loss.reduction_length": five_tasks.get_config().episode.max_tokens}
}


def get_config(arm: str = "agentrl"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "objectives_on_five_tasks"
  return arms.apply_arm(c, ARMS, arm)
