"""A horizon that grows, as in ScalingInter-RL (arXiv:2509.08755).

  python -m launch.sweep \\
    --ablation=configs/ablations/other_systems/curriculum.py --seeds=5

A thing is somewhere in a room of four places. A policy that looks for it needs
more than six of its ten turns in a third of the rooms; most demonstrations know
where it is, so that they are short. Evaluations always have all ten.

`reversed` is the negative control: the same limits, from long to short.
`long_equal_turns` stops early, at about as many turns as `scaled` takes.
"""

from configs import arms, five_tasks

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
  c = five_tasks.get_config()
  c.name = "curriculum"
  c.tasks.names = ("alfworld",)
  c.environments.alfworld.options.max_rounds = _LONG
  c.environments.alfworld.mistakes.search = 0.3
  c.episode.max_turns = _LONG
  # An episode that a limit ended earns what it has: a penalty would teach to
  # stop early, which is another effect than the horizon's.
  c.advantage.incomplete_reward = 0.0
  c.warm_start.num_demonstrations = 2500
  c.train.steps = 40
  c.admission.update(groups_per_step=12, max_concurrent_groups=10)
  c.queue.max_groups = 12
  c.evaluation.update(num_tasks=256, num_sampled=64)
  return arms.apply_arm(c, ARMS, arm)
