"""A horizon that grows, as in ScalingInter-RL (arXiv:2509.08755).

  python -m launch.sweep \\
    --ablation=studies/configs/curriculum.py --seeds=5

The way over a lake (`studies/environments/frozen_lake`) takes six moves at
least, and more where a move slips, which one in ten does. Evaluations always
have all ten.

`reversed` is the negative control: the same limits, from long to short.
`long_equal_turns` stops early, at about as many turns as `scaled` takes.
"""

from configs import arms, base
from studies.configs import starpo

_LONG = 10  # turns
ARMS = {
  "long": {},
  "long_equal_turns": {"train.steps": 33},
  "short": {"curriculum.limits": ("6 turns until 1000",)},
  "scaled": {"curriculum.limits": ("6 turns until 13", "8 turns until 26")},
  "reversed": {
    "curriculum.limits": (
      "10 turns until 13",
      "8 turns until 26",
      "6 turns until 1000",
    )
  },
}


def get_config(arm: str = "long"):
  """`arm` is the text after the colon on the command line."""
  c = starpo.get_config()
  c.name = "curriculum"
  c.tasks.names = ("frozen_lake",)
  lake = c.environments.frozen_lake
  with c.unlocked():
    lake.options.update(slip=0.1, max_rounds=_LONG)
  lake.mistakes.update(stray=0.4, ignore_holes=0.3)
  # One task of starpo's three: a smaller policy, and a third of the updates.
  c.tokenizer.update(vocab_size=420, whole_tokens=starpo.TEXTS)
  c.model.update(width=48, head_dim=12, mlp_width=96)
  c.warm_start.num_demonstrations = 4000
  c.train.update(steps=40, batch_timeout_s=300.0)
  c.optimizer.learning_rate = 1e-3
  c.checkpoint.every = 20
  c.episode.max_turns = _LONG
  c.mutual_information = base.get_config().mutual_information
  # As in starpo: an episode that a limit ended earns what it has. A penalty
  # would teach to hurry, which is another effect than the horizon's.
  assert c.advantage.incomplete_reward == 0
  c.evaluation.update(num_tasks=256, num_sampled=256, timeout_s=300.0)
  return arms.apply_arm(c, ARMS, arm)
