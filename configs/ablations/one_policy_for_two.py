"""One policy for the quickstart's two tasks against a policy for each.

  python -m launch.sweep --ablation=configs/ablations/one_policy_for_two.py

Each task has as many demonstrations and episodes in its own arm as in `both`.
"""

from configs import arms, quickstart

_WHOLE = quickstart.get_config()
ARMS = {
  "both": {},
  **{name: arms.on_tasks(_WHOLE, [name]) for name in _WHOLE.tasks.names},
}


def get_config(arm: str = "both"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "one_policy_for_two"
  return arms.apply_arm(c, ARMS, arm)
