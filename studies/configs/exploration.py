"""Cross-policy sampling where exploration binds: a lake that is rarely crossed.

  python -m launch.sweep \\
    --ablation=studies/configs/exploration.py --first_seed=1

AgentRL (arXiv:2510.04206, section 3.1) lets an older version answer a quarter
of the turns, so that exploration goes on. The lake's warm start crosses half of
the lakes in 64 attempts each, and its entropy falls as it learns. `every_50`
and `every_100` serve a version that is up to so many updates old, as the
paper's stale engines do: per turn, or per trajectory.
"""

from configs import arms, base
from configs.experiment import ExperimentPlan
from studies.configs import starpo


def _older(updates: int, draw_per: str = "turn"):
  return {
    "cross_policy.policy_slots": ("fresh", f"every {updates}"),
    "cross_policy.weights": (0.75, 0.25),
    "cross_policy.draw_per": draw_per,
    "engine.slots": (48, 24),
  }


ARMS = {
  "never": {},
  "every_50": _older(50),
  "every_100": _older(100),
  "every_50_trajectory": _older(50, "trajectory"),
}

# Written after a pilot of one seed (0) and 226 updates of `never`, in which
# training success rose from 12 to 25 % and entropy fell to 0.04 nats.
PLAN = ExperimentPlan(
  question=(
    "Where exploration binds, does a quarter of the turns by a version 50 or "
    "100 updates old end at more lakes crossed, and does it matter if turns or "
    "whole trajectories are drawn?"
  ),
  mode="greedy",
  task="frozen_lake",
  contrasts=(
    "every_50 - never",
    "every_100 - never",
    "every_50_trajectory - every_50",
  ),
  seeds=5,
  least_difference=14.0,
  spread=5.0,
  spread_from="a shorter way over it, greedy: 0.6 to 3.4 points in 40 updates",
  num_tasks=512,
  higher="The older version, or the draw per trajectory, earns its place.",
  lower="The older version, or the draw per trajectory, costs success.",
  neither="Neither makes a difference of least_difference points in 400 "
  "updates.",
)


def get_config(arm: str = "never"):
  """`arm` is the text after the colon on the command line."""
  c = starpo.get_config()
  c.name = "exploration"
  c.tasks.names = ("frozen_lake",)
  lake = c.environments.frozen_lake
  lake.options = {"size": 5, "frozen": 0.65, "max_rounds": 12}
  lake.mistakes = {"stray": 0.3, "ignore_holes": 0.6}
  c.tokenizer.vocab_size = 400
  c.warm_start.num_demonstrations = 3000
  c.train.update(steps=400, row_length=640, micro_batch=2)
  c.optimizer.learning_rate = 1e-3
  c.advantage.keep = "signal"
  c.mutual_information = base.get_config().mutual_information
  c.episode.update(max_turns=12, max_tokens=640)
  c.engine.update(context=640, prefill_chunks=(16, 48))
  c.checkpoint.every = 50
  c.evaluation.update(num_tasks=512, num_sampled=512)
  return arms.apply_arm(c, ARMS, arm)
