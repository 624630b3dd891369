"""Published objectives, each at three learning rates.

  python -m launch.sweep --ablation=configs/ablations/learning_rates.py \\
    --first_seed=10 --seeds=2 --budget=2cores

`objectives.py` compares them at AgentRL's rate, which another objective need
not share: it may step farther, or fall at a rate that a clip bears. Here each
has that rate, a third of it and three times it. Tune on seeds 10 and 11, and
compare the best rates on others.
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
