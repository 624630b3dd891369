"""Filters of groups at a learning rate at which training on all of them fails.

  python -m launch.sweep --ablation=studies/configs/collapse.py \\
    --first_seed=1 --seeds=6 --arms=all,top_share,random_share,top_signal,random

RAGEN (arXiv:2504.20073) saw agents that learn, and then lose what they learned:
the rewards of a group become alike, and the gradient spikes. It trains on the
quarter of the groups whose rewards vary most; RAGEN-2 (arXiv:2604.06268) on the
fewest that hold 0.9 of all std. This is the lake of `starpo.py`, with 15 times
its learning rate. Each filter stands beside as many groups at random, so that a
difference is not one of how much is trained: these pairs are compared, and
`all` shows that training fails without a filter.
"""

from configs import arms
from studies.configs import starpo

ARMS = {
  name: starpo.ARMS[name]
  for name in ("all", "top_share", "random_share", "top_signal", "random")
}


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = starpo.get_config()
  c.name = "collapse"
  c.tasks.names = ("frozen_lake",)
  c.tokenizer.update(vocab_size=420, whole_tokens=starpo.TEXTS)
  c.train.update(steps=40, batch_timeout_s=300.0)
  c.optimizer.update(learning_rate=3e-2, warmup_steps=10)
  c.evaluation.update(timeout_s=300.0)
  return arms.apply_arm(c, ARMS, arm)
