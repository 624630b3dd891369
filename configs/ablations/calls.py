"""Tool calls, free or constrained to their schemas by a grammar.

  python -m launch.train --config=configs/ablations/calls.py:well_formed

The grammar constrains sampling to the names and schemas of the task's tools;
the learner trains on the same distribution. Watch `success/<task>`,
`policy/entropy` and `policy/engine_drift`.
"""

from configs import arms, quickstart

ARMS = {
  "free": {},
  "well_formed": {"sampling.calls": "well_formed"},
  "required": {"sampling.calls": "required"},
}


def get_config(arm: str = "free"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
