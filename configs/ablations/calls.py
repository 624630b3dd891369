"""Tool calls, free or constrained to their schemas by a grammar.

  python -m launch.sweep --ablation=configs/ablations/calls.py --seeds=3

The grammar constrains sampling to the names and schemas of the task's tools;
the learner trains on the same distribution. The warm start is a short one:
after the quickstart's own, hardly a call is malformed. Watch `success/<task>`,
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
  c = quickstart.get_config()
  c.name = "calls"
  c.warm_start.num_demonstrations = 4_500
  return arms.apply_arm(c, ARMS, arm)
