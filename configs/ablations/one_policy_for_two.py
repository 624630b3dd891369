"""One policy for the quickstart's two tasks against a policy for each.

  python -m launch.sweep --ablation=configs/ablations/one_policy_for_two.py

From one warm start per seed, the arms `rl_without_...` leave a task out of
reinforcement learning, at as many episodes of the other as in `both`: is the
policy of one task better at it, and what does it still know of the other?
"""

from configs import arms, quickstart

_WHOLE = quickstart.get_config()
ARMS = {
  "both": {},
  **{
    f"rl_without_{name}": arms.learning_without(_WHOLE, [name])
    for name in _WHOLE.tasks.names
  },
}


def get_config(arm: str = "both"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "one_policy_for_two"
  return arms.apply_arm(c, ARMS, arm)
