"""Filters of groups in StarPO-S and RAGEN-2, beside one that is random.

  python -m launch.sweep --ablation=configs/ablations/other_systems/starpo.py \
    --seeds=5

RAGEN trains on the groups whose rewards vary most: a quarter of all
(`top_share`, StarPO-S, arXiv:2504.20073), or the fewest that hold 0.9 of all
std (`top_signal`, RAGEN-2, arXiv:2604.06268). Its scripts take a softmax of the
std instead, which keeps most groups without a signal too. `random` is the
negative control: as many groups as `top_signal` keeps, whichever they are.

One task in five of DBBench gives a reward, as in `rare_reward`, so that many
groups have no signal. Episodes are equal in all arms, trained tokens are not:
compare by both. Watch `success/<task>`, `reward/group_std`, `policy/entropy`
and `policy/mutual_information`.
"""

from configs import arms
from configs.ablations import rare_reward

RANDOM = "agentrl_jax.train.random_filter:keep_random_groups"

ARMS = {
  "all": {},
  "top_share": {
    "advantage.keep": "top_share",
    "advantage.keep_threshold": 0.25,
  },
  "top_signal": {
    "advantage.keep": "top_signal",
    "advantage.keep_threshold": 0.9,
  },
  "top_softmax": {
    "advantage.keep": "top_softmax",
    "advantage.keep_threshold": 0.9,
  },
  "random": {
    "advantage.keep": RANDOM,
    "advantage.keep_settings": {"share": 0.9},
  },
}


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = rare_reward.get_config()
  c.name = "starpo"
  c.advantage.keep = "all"
  c.mutual_information.update(every=5, num_answers=32)
  return arms.apply_arm(c, ARMS, arm)
