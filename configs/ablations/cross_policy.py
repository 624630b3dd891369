"""Cross-policy sampling: never, per episode or per turn, of versions by age.

  python -m launch.train --config=configs/ablations/cross_policy.py:trajectory

AgentRL (arXiv:2510.04206, section 3.1) draws per turn. Watch `success/<task>`,
`policy_slots/success/policy_slot1/<task>` and
`policy/effective_sample_size/policy_slot1/<task>`.
"""

from configs import arms, quickstart

ARMS = {
  "turn": {},
  "trajectory": {"cross_policy.draw_per": "trajectory"},
  "never": {"cross_policy.draw_per": "never"},
  # Older versions of another age, in updates; with "turn" it is 5 to 9.
  "age_10": {"cross_policy.policy_slots": ("fresh", "every 5 lag 10")},
  "age_20": {"cross_policy.policy_slots": ("fresh", "every 5 lag 20")},
  "warm_start": {"cross_policy.policy_slots": ("fresh", "steps 0")},
}


def get_config(arm: str = "turn"):
  """`arm` is the text after the colon on the command line."""
  return arms.apply_arm(quickstart.get_config(), ARMS, arm)
