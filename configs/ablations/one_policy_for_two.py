"""One policy for the quickstart's two tasks against a policy for each.

  python -m launch.sweep --ablation=configs/ablations/one_policy_for_two.py

Each task has as many demonstrations and episodes in its own arm as in `both`.
An update alone has half as many groups, so the arms `..._whole_batches` make
half as many updates of as many groups as `both`. The arms `rl_without_...`
leave a task out of reinforcement learning alone, from a shared warm start: what
does the other teach? An arm of one task has a warm start of its own.
"""

from configs import arms, quickstart

_WHOLE = quickstart.get_config()
_WHOLE_BATCHES = {
  "admission.groups_per_step": _WHOLE.admission.groups_per_step,
  "admission.max_concurrent_groups": _WHOLE.admission.max_concurrent_groups,
  "queue.max_groups": _WHOLE.queue.max_groups,
  "train.steps": _WHOLE.train.steps // len(_WHOLE.tasks.names),
}
ARMS = {
  "both": {},
  **{name: arms.on_tasks(_WHOLE, [name]) for name in _WHOLE.tasks.names},
  **{
    f"rl_without_{name}": arms.learning_without(_WHOLE, [name])
    for name in _WHOLE.tasks.names
  },
  **{
    f"{name}_whole_batches": arms.on_tasks(_WHOLE, [name]) | _WHOLE_BATCHES
    for name in _WHOLE.tasks.names
  },
}


def get_config(arm: str = "both"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "one_policy_for_two"
  return arms.apply_arm(c, ARMS, arm)
