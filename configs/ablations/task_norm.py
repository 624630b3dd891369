"""Task advantage normalisation, part by part.

  python -m launch.sweep --ablation=configs/ablations/task_norm.py --seeds=5

AgentRL (arXiv:2510.04206, eq. 1) centres the advantages of each task and
scales them, with the statistics of the batch's tokens. The quickstart leaves it
little to do: each group is divided by its own std, and `keep="signal"` leaves
out groups without one before these statistics are taken. Arms in which the
spreads of the tasks differ need `advantage.keep="all"` in all of them.
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
