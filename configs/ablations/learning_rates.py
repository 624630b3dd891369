"""Published objectives, each at three learning rates.

  python -m launch.sweep --ablation=configs/ablations/learning_rates.py \\
    --arms=agentrl,gspo,cispo_slow,rloo_slow --seeds=6 --first_seed=20

Another objective than AgentRL's need not share its rate: it may step farther,
or fall at a rate that a clip bears. Each has that rate, a third of it and three
times it. All arms were run with seeds 10 and 11; those with the highest greedy
success are compared on other seeds.
"""

from configs import arms, quickstart
from configs.ablations import objectives

_RATES = {"": 6e-4, "_slow": 2e-4, "_fast": 1.8e-3}
ARMS = {
  f"{name}{suffix}": objectives.ARMS[name]
  | ({"optimizer.learning_rate": rate} if suffix else {})
  for name in ("agentrl", "gspo", "cispo", "rloo")
  for suffix, rate in _RATES.items()
}


def get_config(arm: str = "agentrl"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "learning_rates"
  return arms.apply_arm(c, ARMS, arm)
