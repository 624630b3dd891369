"""One policy for five tasks against a policy for each, from one warm start.

  python -m launch.sweep --ablation=configs/ablations/one_policy.py

AgentRL's Table 5 has 67.7 % for one policy and 67.8 % for five. The arms
`rl_only_...` leave all other tasks out of reinforcement learning, at as many
episodes of their own as in `all`; their warm start is that of `all`, and their
evaluations have all tasks. `rl_without_...` leave one task out.

The arms `without_...` hold a task out altogether, to see what the others teach
of it:

  python -m launch.evaluate --config=configs/five_tasks.py --policy=rl \\
    --run=sweeps/one_policy/cells/without_webshop-s0 --tasks=webshop/test

`one_policy_for_two.py` asks the same of the quickstart, at a tenth of the cost.
"""

from configs import arms, environments, five_tasks

_WHOLE = five_tasks.get_config()


def _others(name: str) -> list[str]:
  return [other for other in environments.NAMES if other != name]


ARMS = {
  "all": {},
  **{
    f"rl_only_{name}": arms.learning_without(_WHOLE, _others(name))
    for name in environments.NAMES
  },
  **{
    f"rl_without_{name}": arms.learning_without(_WHOLE, [name])
    for name in environments.NAMES
  },
  **{
    f"without_{name}": arms.on_tasks(_WHOLE, _others(name))
    for name in environments.NAMES
  },
}


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "one_policy"
  c.train.steps = 40  # in five_tasks.py most is learned in them
  c.evaluation.update(num_tasks=256, num_sampled=64)
  return arms.apply_arm(c, ARMS, arm)
