"""Groups that teach nothing: left out, trained on, or others in their place.

  python -m launch.sweep --ablation=configs/ablations/filters.py --seeds=5

`signal`, the quickstart's own, leaves out the groups whose attempts all scored
the same, as DAPO does (arXiv:2503.14476). `all` keeps them, so that their zeros
count in the mean over tokens. `random` is the negative control: it leaves out
as many groups as `signal`, whichever they are.
"""

from configs import arms, quickstart

ARMS = {
  "signal": {},
  "all": {"advantage.keep": "all"},
  "random": {
    "advantage.keep": "agentrl_jax.train.random_filter:keep_random_groups"
  },
}


def get_config(arm: str = "signal"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "filters"
  return arms.apply_arm(c, ARMS, arm)
