"""Cases of ratios, and of the weights made from them."""

import math

import numpy as np

from tests.golden.vectors.cases import Case, case
from tests.reference import ratios

NAN = math.nan

# Log-probabilities: an observation, then a row of padding.
POLICY_BT = [[-0.5, -1.0, NAN, -2.0], [NAN] * 4]
BEHAVIOR_BT = [[-0.5, -1.5, NAN, -1.0], [NAN] * 4]
MASK_BT = [[True, True, False, True], [False] * 4]

# Log-ratios as `log_ratio` returns them: 0 off the mask.
X_BT = [[0.0, 0.5, -0.5, 0.125], [1.5, -1.0, 0.75, 0.0]]
X_MASK_BT = [[True] * 4, [True, True, True, False]]
SEGMENT_BT = [[0, 0, 1, 1], [0, 0, 7, 0]]
ADVANTAGE_BT = [[1.0, 2.0, 0.5, 0.0], [-1.0, -0.5, -2.0, 1.0]]


def cases() -> dict[str, list[Case]]:
  return {"ratios": [*_ratios(), *_importance_weights(), *_straight_through()]}


def _ratios() -> list[Case]:
  rows = {"log_ratio_BT": X_BT, "mask_BT": X_MASK_BT}
  packed = {**rows, "segment_BT": SEGMENT_BT, "num_segments": 2}

  def token_form(own_BT):
    return ratios.gspo_token_log_ratio(
      own_BT,
      np.array(X_MASK_BT),
      np.array(SEGMENT_BT),
      2,
      constant_BT=np.array(X_BT),
    )

  return [
    case(
      "log_ratio",
      "Off the mask 0; the third trained token is held at the limit, without "
      "a gradient.",
      ratios.log_ratio,
      {
        "policy_logprob_BT": POLICY_BT,
        "behavior_logprob_BT": BEHAVIOR_BT,
        "mask_BT": MASK_BT,
        "limit": 0.75,
      },
      by=("policy_logprob_BT",),
    ),
    case(
      "sequence_log_ratio",
      "Sums over rows, held at 1 from above.",
      ratios.sequence_log_ratio,
      {**rows, "average": False, "limit": 1.0},
      by=("log_ratio_BT",),
    ),
    case(
      "sequence_log_ratio",
      "Means over packed sequences; the token with the id 7 belongs to none.",
      ratios.sequence_log_ratio,
      {**packed, "average": True},
      by=("log_ratio_BT",),
    ),
    case(
      "gspo_token_log_ratio",
      "The means again; each token has a gradient of its own, the same in sum.",
      ratios.gspo_token_log_ratio,
      packed,
      by=("log_ratio_BT",),
      differentiable=token_form,
    ),
  ]


def _importance_weights() -> list[Case]:
  def normalised(weight_BT, mean):
    return ratios.normalised_weight(weight_BT, mean["total"], mean["weight"])

  ratio = {"log_ratio_BT": X_BT}
  return [
    case(
      "truncated_weight",
      "Capped from above only.",
      ratios.truncated_weight,
      {**ratio, "cap": 1.5},
    ),
    case(
      "masked_weight",
      "Beyond the bounds 0, not the bound.",
      ratios.masked_weight,
      {**ratio, "low": 0.5, "high": 2.0},
    ),
    case(
      "stale_failure_weight",
      "Only a failure that has become rare is left out.",
      ratios.stale_failure_weight,
      {**ratio, "advantage_BT": ADVANTAGE_BT, "divergence": 0.25},
    ),
    case(
      "normalised_weight",
      "By the mean of six weights, of which four were elsewhere.",
      normalised,
      {"weight_BT": [[0.5, 2.0]], "mean": {"total": 9.0, "weight": 6.0}},
    ),
  ]


def _straight_through() -> list[Case]:
  return [
    case(
      "with_gradient_of",
      "One's value with the other's gradient.",
      lambda value, gradient: value,
      {"value": [[1.0, -2.0]], "gradient": [[0.5, 3.0]]},
      by=("gradient",),
      differentiable=lambda gradient: gradient,
    )
  ]
