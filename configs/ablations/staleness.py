"""Data of a set age, bounds on how far generation runs ahead, and corrections.

  python -m launch.sweep --ablation=configs/ablations/staleness.py

AgentRL (arXiv:2510.04206) bounds the age of its data by the capacity of the
queue. A bound changes nothing where generation is the slower side, as in the
quickstart, so `lag_4` and `lag_16` let every answer come from the version that
is as many updates old. Watch `staleness/mean`,
`policy/effective_sample_size/policy_slot0`,
`policy/abs_log_ratio/policy_slot0` and the minutes of a run.
"""

from typing import Any

from configs import arms, quickstart

GROUPS = quickstart.get_config().admission.groups_per_step


def _ahead(versions: int) -> dict[str, int]:
  """Lets groups wait for so many updates."""
  return {
    "admission.max_staleness": versions,
    "queue.max_groups": GROUPS * (versions + 1),
    "queue.max_age": -1,  # this asks for the bound of admission alone
  }


def _lag(versions: int) -> dict[str, Any]:
  """Lets a policy answer that is so many updates old."""
  return {
    "cross_policy.policy_slots": ("fresh", f"every 1 lag {versions}"),
    "cross_policy.weights": (0.0, 1.0),
    "checkpoint.every": 1,
  }


# AReaL, arXiv:2505.24298: clip against the policy as the batch found it, and
# weigh by the truncated ratio to the one that sampled.
CORRECTED = {
  "loss.proximal": "recomputed",
  "loss.importance": "truncated",
  "loss.importance_high": 5.0,
}

MIXTURE = {
  "model.num_experts": 16,
  "model.experts_per_token": 4,
  "model.normed_experts": True,
  "model.mlp_width": quickstart.get_config().model.mlp_width // 4,
  "compute.dtype": "bfloat16",
}

ARMS = {
  "one": {},
  # Waits for every group, and starts none before its update.
  "synchronous": _ahead(0) | {"admission.max_concurrent_groups": GROUPS},
  "four": _ahead(4),
  "sixteen": _ahead(16),
  "four_corrected": _ahead(4) | CORRECTED,
  "sixteen_corrected": _ahead(16) | CORRECTED,
  "lag_4": _lag(4),
  "lag_16": _lag(16),
  "lag_16_corrected": _lag(16) | CORRECTED,
  # R3, arXiv:2510.11370: `engine/router_agreement`, `policy/engine_drift`
  "mixture": MIXTURE,
  "mixture_replayed": MIXTURE | {"engine.router_replay": True},
}


def get_config(arm: str = "one"):
  """`arm` is the text after the colon on the command line."""
  c = quickstart.get_config()
  c.name = "staleness"
  return arms.apply_arm(c, ARMS, arm)
