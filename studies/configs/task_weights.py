"""Groups that teach nothing: left out, replaced, or drawn less often.

  python -m launch.sweep --ablation=studies/configs/task_weights.py --seeds=5

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
  "weighted": {"task_weights.rule": "signal"},
  "both": {"admission.refills_per_step": 12, "task_weights.rule": "signal"},
}


def get_config(arm: str = "as_drawn"):
  """`arm` is the text after the colon on the command line."""
  c = rare_reward.get_config()
  c.name = "task_weights"
  return arms.apply_arm(c, ARMS, arm)
