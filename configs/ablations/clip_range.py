"""Upper clip ranges, and their effect on the policy's entropy.

  python -m launch.train --config=configs/ablations/clip_range.py:higher

Watch `policy/entropy` and `reward/mean`.
"""

from configs import arms, quickstart

ARMS = {
  "symmetric": {},
  "higher": {"loss.clip_high": 0.28},
  "highest": {"loss.clip_high": 1.0},
  "unclipped": {"loss.surrogate": "reinforce", "loss.dual_clip": 0.0},
}


def get_config(arm: str = "symmetric"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
