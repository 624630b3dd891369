r"""Ablations of AgentRL's two ideas on five tasks, as in the paper's Table 6.

  python -m launch.sweep --seeds=3 --config.train.steps=40 \
    --ablation=configs/ablations/agentrl_on_five_tasks.py

The arms are those of `agentrl.py`, and `full` is `configs/five_tasks.py`. A
cell of all 120 updates takes an hour of one core.
"""

from configs import arms, five_tasks
from configs.ablations import agentrl

ARMS = agentrl.ARMS


def get_config(arm: str = "full"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "agentrl_on_five_tasks"
  return arms.apply_arm(c, ARMS, arm)
