"""Task advantage normalisation, part by part.

  python -m launch.sweep --ablation=configs/ablations/task_norm.py --seeds=5

AgentRL (arXiv:2510.04206, eq. 1) centres the advantages of each task and
scales them, with the statistics of the batch's tokens. `rare_reward.py` beside
this has a setting in which the tasks differ more.
"""

from configs import arms, quickstart

ARMS = {
  "both": {},
  "none": {"advantage.task_center": False, "advantage.task_scale": False},
  "center": {"advantage.task_scale": False},
  "scale": {"advantage.task_center": False},
  "running": {"advantage.task_decay": 0.9},
  "trajectories": {"advantage.task_statistics": "trajectories"},
}


def get_config(arm: str = "both"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "task_norm"
  return arms.apply_arm(c, ARMS, arm)
