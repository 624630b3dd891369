"""An ablation of the smallest run, for tests of sweeps."""

from configs import arms
from tests.launch import tiny

ARMS = {
  "full": {},
  "no_norm": {"advantage.task_center": False, "advantage.task_scale": False},
}


def get_config(arm: str = "full"):
  c = arms.apply_arm(tiny.get_config(), ARMS, arm)
  c.train.steps = 3
  return c
