"""Cases of attempts compared with each other, and of which groups to keep."""

import math

from tests.golden.vectors.cases import Case, case
from tests.reference.advantages import (
  group_advantages,
  group_filters,
  pass_at_k,
  step_groups,
)

NAN = math.nan

# Group 0 has three valid attempts of four; 1 is constant, 2 of one; 3 is empty.
REWARD_N = [1.0, 0.0, 0.25, NAN, 0.5, 0.5, 0.75]
GROUP_N = [0, 0, 0, 0, 1, 1, 2]
VALID_N = [True, True, True, False, True, True, True]
GROUPS = {
  "reward_N": REWARD_N,
  "group_N": GROUP_N,
  "num_groups": 4,
  "valid_N": VALID_N,
}
GROUPS_ABOUT = (
  "Group 0 has lost one of four attempts, group 1 is constant, group 2 is one "
  "attempt, group 3 none."
)
# Three groups that differ in their spread, one that has none.
SPREAD = {
  "reward_N": [0.0, 1.0, 0.0, 0.5, 0.0, 0.25, 1.0, 1.0],
  "group_N": [0, 0, 1, 1, 2, 2, 3, 3],
  "num_groups": 4,
  "valid_N": [True] * 8,
}


def cases() -> dict[str, list[Case]]:
  return {
    "advantages/group_advantages": _group_advantages(),
    "advantages/group_filters": _filters(),
    "advantages/pass_at_k": _pass_at_k(),
    "advantages/step_groups": _step_groups(),
  }


def _group_advantages() -> list[Case]:
  return [
    case(
      "group_advantage",
      GROUPS_ABOUT,
      group_advantages.group_advantage,
      {**GROUPS, "epsilon": 1e-6},
    ),
    case(
      "group_advantage",
      "The variance divided by n.",
      group_advantages.group_advantage,
      {**GROUPS, "ddof": 0, "epsilon": 1e-6},
    ),
    case(
      "group_advantage",
      "Not divided by the deviation.",
      group_advantages.group_advantage,
      {**GROUPS, "scale_by_std": False},
    ),
    case(
      "leave_one_out_advantage",
      "The same groups.",
      group_advantages.leave_one_out_advantage,
      GROUPS,
    ),
    case(
      "best_of_group_advantage",
      "The same groups.",
      group_advantages.best_of_group_advantage,
      {**GROUPS, "epsilon": 1e-6},
    ),
    case(
      "best_of_group_advantage",
      "Not divided by the deviation.",
      group_advantages.best_of_group_advantage,
      {**GROUPS, "scale_by_std": False},
    ),
  ]


def _filters() -> list[Case]:
  return [
    case(
      "group_has_signal",
      GROUPS_ABOUT,
      group_filters_signal,
      GROUPS,
    ),
    case(
      "group_std",
      "The same groups.",
      group_filters.group_std,
      GROUPS,
    ),
    case(
      "keep_groups_above",
      "Deviations of 0.71, 0.35, 0.18 and 0.",
      group_filters.keep_groups_above,
      {**SPREAD, "threshold": 0.25},
    ),
    case(
      "keep_top_groups",
      "Three quarters of four groups.",
      group_filters.keep_top_groups,
      {**SPREAD, "share": 0.75},
    ),
    case(
      "keep_top_signal",
      "The first group alone holds 4/7 of the signal, the first two 6/7.",
      group_filters.keep_top_signal,
      {**SPREAD, "share": 0.75},
    ),
    case(
      "keep_top_softmax",
      "The same share of a softmax, in which all four weigh nearly the same.",
      group_filters.keep_top_softmax,
      {**SPREAD, "share": 0.75},
    ),
  ]


def group_filters_signal(reward_N, group_N, num_groups, valid_N):
  return group_advantages.group_has_signal(
    reward_N, group_N, num_groups, valid_N
  )


def _pass_at_k() -> list[Case]:
  groups = {
    "group_N": [0, 0, 0, 0, 1, 1, 0],
    "num_groups": 3,
    "valid_N": [True] * 6 + [False],
  }
  return [
    case(
      "pass_at_k_advantage",
      "One success of four, in teams of two; a group that is one team.",
      pass_at_k.pass_at_k_advantage,
      {
        "success_N": [True, False, False, False, True, False, True],
        **groups,
        "k": 2,
      },
    ),
    case(
      "max_at_k_advantage",
      "Teams of two; two attempts of the first group are equal.",
      pass_at_k.max_at_k_advantage,
      {"reward_N": [1.0, 0.25, 0.25, 0.5, 0.5, 0.75, NAN], **groups, "k": 2},
    ),
  ]


def _step_groups() -> list[Case]:
  steps = {
    "state_NU": [[0, 1, 2], [0, 1, 9], [0, 2, 1]],
    "group_N": [0, 0, 1],
    "num_groups": 2,
    "num_states": 3,
    "valid_NU": [[True] * 3, [True, True, False], [True] * 3],
  }
  return [
    case(
      "gigpo_advantage",
      "Two attempts that met in states 0 and 1, and one in a group of its own.",
      step_groups.gigpo_advantage,
      {
        "reward_NU": [[0.0, 0.5, 1.0], [0.0, 0.25, NAN], [0.5, 0.0, 1.0]],
        **steps,
        "discount": 0.5,
        "step_weight": 0.5,
      },
    ),
    case(
      "step_advantage",
      "Their returns compared state by state.",
      step_groups.step_advantage,
      {
        "return_NU": [[0.5, 1.0, 1.0], [0.125, 0.25, NAN], [0.75, 0.5, 1.0]],
        **steps,
        "scale_by_std": False,
      },
    ),
  ]
