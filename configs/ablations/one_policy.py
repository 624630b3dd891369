"""One policy for five tasks against a policy for each, at equal episodes each.

  python -m launch.sweep --ablation=configs/ablations/one_policy.py --seeds=3

AgentRL's Table 5 has 67.7 % for one policy and 67.8 % for five. The arms
`without_...` hold a task out, to see what the others teach of it:

  python -m launch.evaluate --config=configs/five_tasks.py --policy=rl \\
    --run=sweeps/one_policy/cells/without_webshop-s0 --tasks=webshop/test

The arms `rl_without_...` leave it out of reinforcement learning alone, and
`rl_only_...` all others, so that their warm start is that of `all`, and their
evaluations have all tasks. An arm of one task has a warm start of its own, from
fewer demonstrations, so its end does not tell what reinforcement learning made.

`one_policy_for_two.py` asks the same of the quickstart, at a tenth of the cost.
"""

from configs import arms, environments, five_tasks

_WHOLE = five_tasks.get_config()
ARMS = {
  "all": {},
  **{name: arms.on_tasks(_WHOLE, [name]) for name in environments.NAMES},
  **{
    f"without_{held_out}": arms.on_tasks(
      _WHOLE, [name for name in environments.NAMES if name != held_out]
    )
    for held_out in environments.NAMES
  },
  **{
    f"rl_without_{held_out}": arms.learning_without(_WHOLE, [held_out])
    for held_out in environments.NAMES
  },
  **{
    f"rl_only_{name}": arms.learning_without(
      _WHOLE, [other for other in environments.NAMES if other != name]
    )
    for name in environments.NAMES
  },
}


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "one_policy"
  return arms.apply_arm(c, ARMS, arm)
