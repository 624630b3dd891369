"""Cases of the losses made from ratios, and of divergences."""

import math

import numpy as np

from tests.golden.vectors.cases import Case, case, mean
from tests.golden.vectors.vectors_ratios import (
  ADVANTAGE_BT,
  BEHAVIOR_BT,
  MASK_BT,
  POLICY_BT,
  X_BT,
  X_MASK_BT,
)
from tests.reference import agentrl, kl, policy_gradient

NAN = math.nan

REFERENCE_BT = [[-0.75, -1.0, NAN, -1.5], [NAN] * 4]
SURROGATE = {"log_ratio_BT": X_BT, "advantage_BT": ADVANTAGE_BT}
CLIP = {"clip_low": 0.25, "clip_high": 0.375}
BY_RATIO = ("log_ratio_BT",)


def cases() -> dict[str, list[Case]]:
  return {
    "policy_gradient": [
      *_policy_gradient(),
      *_geometric_mean(),
      *_supervised(),
    ],
    "kl": _kl(),
    "agentrl": _agentrl(),
  }


def _policy_gradient() -> list[Case]:
  return [
    case(
      "reinforce",
      "No clipping.",
      policy_gradient.reinforce,
      SURROGATE,
      by=BY_RATIO,
    ),
    case(
      "clipped_surrogate",
      "Bounds that differ; the gradient stops at the second and sixth token.",
      policy_gradient.clipped_surrogate,
      {**SURROGATE, **CLIP},
      by=BY_RATIO,
    ),
    case(
      "clipped_surrogate",
      "With a dual clip it stops at the fifth as well.",
      policy_gradient.clipped_surrogate,
      {**SURROGATE, **CLIP, "dual_clip": 3.0},
      by=BY_RATIO,
    ),
    case(
      "decoupled_surrogate",
      "Two weights are above the cap.",
      policy_gradient.decoupled_surrogate,
      {
        **SURROGATE,
        "proximal_log_ratio_BT": [
          [0.0, 0.25, 1.0, -0.5],
          [1.5, 0.5, -1.0, 0.0],
        ],
        **CLIP,
        "dual_clip": 3.0,
        "weight_cap": 2.0,
      },
      by=BY_RATIO,
    ),
    case(
      "cispo",
      "Every token has a gradient.",
      policy_gradient.cispo,
      {
        **SURROGATE,
        "policy_logprob_BT": [
          [-0.5, -1.0, -0.25, -2.0],
          [-1.0, -3.0, -1.0, NAN],
        ],
        "mask_BT": X_MASK_BT,
        **CLIP,
      },
      by=("policy_logprob_BT",),
    ),
    *(
      case(
        "binary_divergence",
        "The third token fell by 0.30, and by 0.19 nats.",
        policy_gradient.binary_divergence,
        {
          "log_ratio_BT": [[0.5, 0.5, -0.6, -1.0], [0.0, 4.0, 0.1, 0.0]],
          "policy_logprob_BT": [
            [-0.5, -0.5, -1.0, -1.5],
            [-1.0, -3.0, -1.0, NAN],
          ],
          "mask_BT": X_MASK_BT,
          "divergence": divergence,
        },
      )
      for divergence in ("tv", "kl")
    ),
    *(
      case(
        "dppo",
        "By total variation the third token fell far enough, by KL it did "
        "not. The ratio of the sixth is above the cap.",
        policy_gradient.dppo,
        {
          "log_ratio_BT": [[0.5, 0.5, -0.6, -1.0], [0.0, 4.0, 0.1, 0.0]],
          "advantage_BT": [[1.0, -1.0, -2.0, 0.5], [1.0, -0.5, 0.0, 0.0]],
          "policy_logprob_BT": [
            [-0.5, -0.5, -1.0, -1.5],
            [-1.0, -3.0, -1.0, NAN],
          ],
          "mask_BT": X_MASK_BT,
          "divergence": divergence,
          **CLIP,
        },
        by=("policy_logprob_BT",),
      )
      for divergence in ("tv", "kl")
    ),
    case(
      "sapo",
      "The published temperatures.",
      policy_gradient.sapo,
      SURROGATE,
      by=BY_RATIO,
    ),
  ]


def _geometric_mean() -> list[Case]:
  return [
    case(
      "gmpo",
      "Two sequences in the first row, of either sign; the second row holds "
      "ratios that are clipped.",
      policy_gradient.gmpo,
      {
        "log_ratio_BT": X_BT,
        "advantage_BT": [[1.0, 1.0, -0.5, -0.5], [-2.0] * 3 + [0.0]],
        "mask_BT": X_MASK_BT,
        "segment_BT": [[0, 0, 1, 1], [0] * 4],
        "num_segments": 2,
        "clip_low": 0.375,
        "clip_high": 0.375,
      },
      by=BY_RATIO,
    )
  ]


def _kl() -> list[Case]:
  behavior_BT = np.array([[0.0, 0.25, -0.5, 1.0], [0.5, 0.0, -1.0, 0.0]])

  def through_both(x_BT):
    step_BT = x_BT - np.array(X_BT)
    return kl.unbiased_kl(x_BT, behavior_BT + step_BT)

  def penalised(reward_BT, log_ratio_BT, mask_BT, coefficient, estimator):
    return kl.kl_penalised_reward(
      reward_BT,
      log_ratio_BT,
      mask_BT,
      coefficient=coefficient,
      estimator=getattr(kl, estimator),
    )

  ratio = {"log_ratio_BT": X_BT}
  return [
    case("k1", "The log-ratio.", kl.k1, ratio, by=BY_RATIO),
    case("k2", "Half its square.", kl.k2, ratio, by=BY_RATIO),
    case("k3", "Without a limit.", kl.k3, ratio, by=BY_RATIO),
    case(
      "k3",
      "Held at a limit, without a gradient.",
      kl.k3,
      {**ratio, "limit": 0.5},
      by=BY_RATIO,
    ),
    case(
      "unbiased_kl",
      "The gradient is that through both arguments at once.",
      kl.unbiased_kl,
      {**ratio, "behavior_log_ratio_BT": behavior_BT.tolist()},
      by=BY_RATIO,
      differentiable=through_both,
    ),
    case(
      "kl_penalised_reward",
      "A token off the mask is neither paid nor charged.",
      penalised,
      {
        "reward_BT": [[0.0, 1.0, 0.0, 0.5], [0.0, 0.0, -1.0, NAN]],
        **ratio,
        "mask_BT": X_MASK_BT,
        "coefficient": 0.25,
        "estimator": "k3",
      },
    ),
  ]


def _supervised() -> list[Case]:
  return [
    case(
      "negative_log_likelihood",
      "The sign, and nothing else.",
      policy_gradient.negative_log_likelihood,
      {"logprob_BT": [[-0.5, -2.0], [0.0, -0.25]]},
      by=("logprob_BT",),
    )
  ]


def _agentrl() -> list[Case]:
  def loss(policy_logprob_BT, mask_BT, **settings):
    return agentrl.loss(
      policy_logprob_BT,
      settings.pop("behavior_logprob_BT"),
      settings.pop("reference_logprob_BT"),
      settings.pop("advantage_BT"),
      mask_BT,
      **settings,
    )

  batch = {
    "policy_logprob_BT": POLICY_BT,
    "behavior_logprob_BT": BEHAVIOR_BT,
    "reference_logprob_BT": REFERENCE_BT,
    "advantage_BT": [[1.0, -2.0, NAN, 0.5], [NAN] * 4],
    "mask_BT": MASK_BT,
    "kl_coefficient": 0.125,
  }
  return [
    case(
      "agentrl_loss",
      "Every token weighs the same; its row of padding counts nowhere.",
      mean(loss),
      batch,
      by=("policy_logprob_BT",),
    ),
    case(
      "agentrl_loss",
      "Both sequences of the first row weigh the same.",
      mean(loss),
      {
        **batch,
        "segment_BT": [[0, 0, 1, 1], [0] * 4],
        "num_segments": 2,
        "reduction": "sequence",
      },
      by=("policy_logprob_BT",),
    ),
  ]
