"""Groups that teach nothing: left out, trained on, or replaced.

  python -m launch.sweep --ablation=studies/configs/no_signal.py --seeds=5

The two tasks differ in difficulty: one question in five of DBBench gives a
reward, as in `rare_reward`. `as_drawn` leaves out the groups whose attempts all
scored the same, `all_kept` trains on them too. Compare at equal episodes: a
replaced group is played, too.
"""

from configs import arms
from studies.configs import rare_reward

ARMS = {
  "as_drawn": {},
  "all_kept": {"advantage.keep": "all"},
  "refilled": {"admission.refills_per_step": 12},
}


def get_config(arm: str = "as_drawn"):
  """`arm` is the text after the colon on the command line."""
  c = rare_reward.get_config()
  c.name = "no_signal"
  return arms.apply_arm(c, ARMS, arm)
