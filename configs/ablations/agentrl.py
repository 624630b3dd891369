"""Ablations of AgentRL's two ideas, one at a time and together.

  python -m launch.train --config=configs/ablations/agentrl.py:no_task_norm

The paper's Table 6 (arXiv:2510.04206) removes cross-policy sampling and task
advantage normalisation. Watch `success/<task>` and `policy/entropy`.
"""

from configs import arms, quickstart

ARMS = {
  "full": {},
  "no_cross_policy": {"cross_policy.draw_per": "never"},
  "no_task_norm": {
    "advantage.task_center": False,
    "advantage.task_scale": False,
  },
  "neither": {
    "cross_policy.draw_per": "never",
    "advantage.task_center": False,
    "advantage.task_scale": False,
  },
  "again": {},  # a negative control: it differs from `full` in nothing
}


def get_config(arm: str = "full"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
