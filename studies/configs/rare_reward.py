"""Task advantage normalisation, where one of two tasks rarely pays.

  python -m launch.sweep --ablation=studies/configs/rare_reward.py --seeds=5

One task in five of DBBench gives a reward, so that most of its groups teach
nothing. `advantage.keep="signal"` leaves these out before the task's statistics
are taken, so that the spreads of the two tasks stay alike, and the arms hardly
differ in what they train on. `center` and `scale` have one half of the
normalisation each. `meaningless` is the negative control: DBBench pays at
random.
"""

from configs import arms, quickstart

ARMS = {
  "norm": {},
  "no_norm": {"advantage.task_center": False, "advantage.task_scale": False},
  "center": {"advantage.task_scale": False},
  "scale": {"advantage.task_center": False},
  "meaningless": {"environments.dbbench.options.meaningless": 0.3},
}


def get_config(arm: str = "norm"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "rare_reward"
  dbbench = c.environments.dbbench
  dbbench.options = {
    "target": dbbench.target,
    "options": dbbench.options.to_dict(),
    "paid_tasks": 0.2,
  }
  dbbench.target = "studies.altered_reward:AlteredReward"
  return arms.apply_arm(c, ARMS, arm)
