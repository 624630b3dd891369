"""What does it bring that calls cannot but be well formed?

  python -m launch.train --config=configs/ablations/calls.py:well_formed

A grammar holds calls to the names and schemas of the task's tools while they
are sampled; the learner trains on the same distribution. Watch
`success/<task>`, `policy/entropy` and `policy/engine_drift`.
"""

from configs import arms, quickstart

ARMS = {
  "free": {},
  "well_formed": {"sampling.calls": "well_formed"},
  "required": {"sampling.calls": "required"},
}


def get_config(arm: str = "free"):
  """`arm` is what follows the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
