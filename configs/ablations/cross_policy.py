"""Cross-policy sampling: never, per episode, per turn, or by adaptive weights.

  python -m launch.train --config=configs/ablations/cross_policy.py:adaptive

AgentRL (arXiv:2510.04206, section 3.1) draws per turn, by fixed weights. Watch
`success/<task>`, `policy_slots/weight/policy_slot1/<task>`,
`policy_slots/contribution/policy_slot1/<task>` and
`policy/effective_sample_size/policy_slot1/<task>`; docs/engine.md has the
formula, and the results of a small comparison.
"""

from configs import arms, quickstart

ARMS = {
  "turn": {},
  "trajectory": {"cross_policy.draw_per": "trajectory"},
  "never": {"cross_policy.draw_per": "never"},
  "adaptive": {"policy_slot_weights.rule": "adaptive"},
  # Older versions of another age, in updates; with "turn" it is 5 to 9.
  "age_10": {"cross_policy.policy_slots": ("fresh", "every 5 lag 10")},
  "age_20": {"cross_policy.policy_slots": ("fresh", "every 5 lag 20")},
  "warm_start": {"cross_policy.policy_slots": ("fresh", "steps 0")},
  # Only the best success of a group counts.
  "explorer": {
    "policy_slot_weights.rule": "adaptive",
    "policy_slot_weights.exploration": 1.0,
  },
}


def get_config(arm: str = "turn"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
