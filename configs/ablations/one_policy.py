"""One policy for five tasks against a policy for each, at equal episodes each.

  python -m launch.sweep --ablation=configs/ablations/one_policy.py --seeds=3

AgentRL's Table 5 has 67.7 % for one policy and 67.8 % for five. The arms
`without_...` hold a task out, to see what the others teach of it:

  python -m launch.evaluate --config=configs/five_tasks.py --policy=rl \\
    --run=sweeps/one_policy/cells/without_webshop-s0 --tasks=webshop/test
"""

from collections.abc import Sequence
from typing import Any

from configs import arms, environments, five_tasks


def _on(names: Sequence[str]) -> dict[str, Any]:
  """Trains on these tasks, each as much as the run of five does."""
  whole = five_tasks.get_config()
  share = len(names) / len(whole.tasks.names)
  keys = (
    "warm_start.num_demonstrations",
    "admission.groups_per_step",
    "admission.max_concurrent_groups",
    "queue.max_groups",
  )
  flat = whole.to_dict()
  scaled = {}
  for key in keys:
    section, name = key.split(".")
    scaled[key] = round(share * flat[section][name])
  return {"tasks.names": tuple(names), **scaled}


ARMS = {
  "all": {},
  **{name: _on([name]) for name in environments.NAMES},
  **{
    f"without_{held_out}": _on(
      [name for name in environments.NAMES if name != held_out]
    )
    for held_out in environments.NAMES
  },
}


def get_config(arm: str = "all"):
  """`arm` is the text after the colon on the command line."""
  c = five_tasks.get_config()
  c.name = "one_policy"
  return arms.apply_arm(c, ARMS, arm)
