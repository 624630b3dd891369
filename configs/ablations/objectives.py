"""Published objectives, everything else being equal.

  python -m launch.train --config=configs/ablations/objectives.py:gspo

Each arm sets the keys of one published objective. The arms differ in the
advantage of a trajectory (`advantage`), in the loss (`loss`), or in both; the
defaults are AgentRL's. Watch `success/<task>`, `policy/entropy` and
`policy/abs_log_ratio/policy_slot0`. `docs/losses.md` describes each part.
"""

from configs import arms, quickstart

NO_TASK_NORM = {"advantage.task_center": False, "advantage.task_scale": False}
WHITENED = NO_TASK_NORM | {"advantage.whiten": True}
CRITIC = WHITENED | {
  "admission.versions_per_step": 2,
  "advantage.keep": "all",
  "loss.value_coefficient": 0.5,
  "loss.value_clip": 0.2,
  "loss.dual_clip": 0.0,
  "model.value_head": True,
}
GSPO = {
  "loss.surrogate": "gspo",
  "loss.dual_clip": 0.0,
  "loss.clip_low": 3e-4,
  "loss.clip_high": 4e-4,
  "loss.reduction": "sequence_mean",
}

ARMS = {
  "agentrl": {},
  # DeepSeekMath, arXiv:2402.03300
  "grpo": NO_TASK_NORM
  | {"loss.reduction": "sequence_mean", "loss.dual_clip": 0.0},
  # arXiv:2503.20783: no deviation, no division by length
  "dr_grpo": NO_TASK_NORM
  | {
    "advantage.scale_by_std": False,
    "loss.reduction": "fixed_length_mean",
    "loss.reduction_settings": {"length": 448},
    "loss.dual_clip": 0.0,
  },
  # arXiv:2503.14476: clip-higher, tokens weigh the same, dynamic sampling
  "dapo": NO_TASK_NORM
  | {"loss.clip_high": 0.28, "loss.dual_clip": 0.0, "advantage.keep": "signal"},
  # arXiv:2507.18071, with its clip ranges
  "gspo": NO_TASK_NORM | GSPO,
  "gspo_token": NO_TASK_NORM
  | GSPO
  | {"loss.surrogate": "gspo_token", "advantage.estimator": "gigpo"},
  # MiniMax-M1, arXiv:2506.13585
  "cispo": NO_TASK_NORM
  | {
    "loss.surrogate": "cispo",
    "loss.dual_clip": 0.0,
    "loss.clip_low": 1.0,  # no lower bound
    "loss.clip_high": 0.28,
  },
  # The mask of arXiv:2602.04879 in its binary forms, with the bounds of verl's
  # example for Qwen3-30B-A3B
  "dppo_tv": NO_TASK_NORM
  | {
    "loss.surrogate": "dppo_tv",
    "loss.dual_clip": 0.0,
    "loss.clip_low": 0.15,
    "loss.clip_high": 0.15,
  },
  "dppo_kl": NO_TASK_NORM
  | {
    "loss.surrogate": "dppo_kl",
    "loss.dual_clip": 0.0,
    "loss.clip_low": 0.05,
    "loss.clip_high": 0.05,
  },
  # SAPO, arXiv:2511.20347
  "sapo": NO_TASK_NORM
  | {
    "loss.surrogate": "sapo",
    "loss.dual_clip": 0.0,
    "loss.reduction": "sequence_mean",
  },
  # GMPO, arXiv:2507.20673: bounds in nats, every sequence weighs the same
  "gmpo": NO_TASK_NORM
  | {
    "loss.surrogate": "gmpo",
    "loss.dual_clip": 0.0,
    "loss.clip_low": 0.4,
    "loss.clip_high": 0.4,
    "loss.reduction": "sequence_mean",
  },
  # Back to basics, arXiv:2402.14740
  "rloo": NO_TASK_NORM
  | {
    "advantage.estimator": "rloo",
    "loss.surrogate": "reinforce",
    "loss.dual_clip": 0.0,
    "loss.reduction": "sequence_sum_mean",
  },
  # No groups needed, arXiv:2501.03262
  "reinforce_plus_plus": WHITENED
  | {
    "advantage.estimator": "reinforce_plus_plus",
    "advantage.keep": "all",
    "loss.dual_clip": 0.0,
  },
  "reinforce_plus_plus_baseline": WHITENED
  | {
    "advantage.estimator": "reinforce_plus_plus_baseline",
    "loss.dual_clip": 0.0,
  },
  # AReaL, arXiv:2505.24298: clip against the policy as the batch found it
  "decoupled": {
    "admission.versions_per_step": 2,
    "loss.proximal": "recomputed",
    "loss.importance": "truncated",
    "loss.importance_high": 5.0,
  },
  # arXiv:2505.10978: steps from the same state against each other
  "gigpo": NO_TASK_NORM
  | {"advantage.estimator": "gigpo", "advantage.discount": 0.95},
  # Pass@k training, arXiv:2508.10751
  "pass_at_k": NO_TASK_NORM
  | {
    "advantage.estimator": "pass_at_k",
    "advantage.estimator_settings": {"k": 4},
  },
  # arXiv:1707.06347, over tokens, over turns, and over both
  "ppo": CRITIC | {"advantage.estimator": "gae"},
  "turn_ppo": CRITIC | {"advantage.estimator": "turn_gae"},
  "bi_level_ppo": CRITIC | {"advantage.estimator": "bi_level_gae"},
}


def get_config(arm: str = "agentrl"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
