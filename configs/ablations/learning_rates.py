"""Published objectives, each at three learning rates.

  python -m launch.sweep --ablation=configs/ablations/learning_rates.py \\
    --first_seed=20 --budget=2cores

Another objective than AgentRL's need not share its rate: it may step farther,
or fall at a rate that a clip bears. Each has that rate, a third of it and three
times it. All arms were run with seeds 10 and 11; the plan compares those with
the highest greedy success on other seeds.
"""

from configs import arms, quickstart
from configs.ablations import objectives
from configs.experiment import ExperimentPlan

_RATES = {"": 6e-4, "_slow": 2e-4, "_fast": 1.8e-3}
ARMS = {
  f"{name}{suffix}": objectives.ARMS[name]
  | ({"optimizer.learning_rate": rate} if suffix else {})
  for name in ("agentrl", "gspo", "cispo", "rloo")
  for suffix, rate in _RATES.items()
}

PLAN = ExperimentPlan(
  question=(
    "Is another published objective better than AgentRL's, each at its best "
    "learning rate of three?"
  ),
  mode="greedy",
  contrasts=("gspo - agentrl", "cispo_slow - agentrl", "rloo_slow - agentrl"),
  seeds=6,
  least_difference=10.0,
  spread=4.0,
  spread_from="seeds 10 and 11 of the same contrasts, whose episodes' noise is "
  "2.1 points",
  num_tasks=256,
  higher="At its own rate this objective ends higher than AgentRL's.",
  lower="At its own rate, too, this objective ends lower than AgentRL's.",
  neither="So its difference from AgentRL's is less than ten points here.",
)


def get_config(arm: str = "agentrl"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "learning_rates"
  return arms.apply_arm(c, ARMS, arm)
