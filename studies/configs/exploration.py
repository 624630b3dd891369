"""Cross-policy sampling where exploration binds: a lake that is rarely crossed.

  python -m launch.sweep \\
    --ablation=studies/configs/exploration.py --first_seed=1

AgentRL (arXiv:2510.04206, section 3.1) lets an older version answer a quarter
of the turns, so that exploration goes on. The lake's warm start crosses half of
the lakes in 64 attempts each, and its entropy falls as it learns. `every_50`
and `every_100` serve a version that is up to so many updates old, as the
paper's stale engines do: per turn, or per trajectory.
"""

from configs import arms
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
  c.episode.update(max_turns=12, max_tokens=640)
  c.engine.update(context=640, prefill_chunks=(16, 48))
  c.checkpoint.every = 50
  c.evaluation.update(num_tasks=512, num_sampled=512)
  return arms.apply_arm(c, ARMS, arm)
