"""Cases of means, and of quantities to watch."""

import math

import numpy as np

from tests.golden.vectors.cases import Case, case, mean
from tests.reference import (
  diagnostics,
  prompt_dependence,
  reductions,
)

NAN = math.nan

X_BT = [[1.0, -2.0, 0.5, NAN], [4.0, NAN, NAN, NAN], [NAN] * 4]
MASK_BT = [[True, True, True, False], [True] + [False] * 3, [False] * 4]
# Two sequences in the first row; the second row's belongs to none.
SEGMENT_BT = [[0, 0, 1, 1], [7, 0, 0, 0], [0] * 4]
TASK_BT = [[0, 0, 1, 9], [1, 9, 9, 9], [9] * 4]
TOKENS = {"x_BT": X_BT, "mask_BT": MASK_BT}
PACKED = {"segment_BT": SEGMENT_BT, "num_segments": 2}

LOG_RATIO_BT = [[0.0, 0.5, -0.5, NAN], [1.5, -1.0, NAN, NAN]]
RATIO_MASK_BT = [[True, True, True, False], [True, True, False, False]]


def cases() -> dict[str, list[Case]]:
  return {
    "reductions": [*_means(), *_weighted_means()],
    "diagnostics": _diagnostics(),
    "prompt_dependence": _prompt_dependence(),
  }


def _means() -> list[Case]:
  return [
    case(
      "token_mean",
      "Four trained tokens.",
      mean(reductions.token_mean),
      TOKENS,
      by=("x_BT",),
    ),
    case(
      "token_mean",
      "Nothing is trained on: 0.",
      mean(reductions.token_mean),
      {"x_BT": [[NAN, NAN]], "mask_BT": [[False, False]]},
    ),
    case(
      "sequence_mean",
      "Two rows; the third has no trained token and does not count.",
      mean(reductions.sequence_mean),
      TOKENS,
      by=("x_BT",),
    ),
    case(
      "segment_mean",
      "Two sequences in the first row; the id 7 is out of range, and its token "
      "does not count.",
      mean(reductions.segment_mean),
      {**TOKENS, **PACKED},
      by=("x_BT",),
    ),
    case(
      "sequence_sum_mean",
      "Rows.",
      mean(reductions.sequence_sum_mean),
      TOKENS,
      by=("x_BT",),
    ),
    case(
      "sequence_sum_mean",
      "Packed sequences.",
      mean(reductions.sequence_sum_mean),
      {**TOKENS, **PACKED},
      by=("x_BT",),
    ),
    case(
      "fixed_length_mean",
      "Rows.",
      mean(reductions.fixed_length_mean),
      {**TOKENS, "length": 4},
      by=("x_BT",),
    ),
    case(
      "fixed_length_mean",
      "Packed sequences.",
      mean(reductions.fixed_length_mean),
      {**TOKENS, **PACKED, "length": 8},
      by=("x_BT",),
    ),
  ]


def _weighted_means() -> list[Case]:
  tasks = {"task_BT": TASK_BT, "mask_BT": MASK_BT}

  def pair_mean(x_P, valid_P):
    row, weight = reductions.token_mean(x_P[None], valid_P[None])
    return row, weight

  return [
    case(
      "weighted_mean",
      "A weight of 0 is not the same as standing off the mask.",
      mean(reductions.weighted_mean),
      {
        **TOKENS,
        "weight_BT": [[0.5, 1.0, 0.0, NAN], [2.0, NAN, NAN, NAN], [NAN] * 4],
      },
      by=("x_BT",),
    ),
    case(
      "task_weights",
      "Two tasks of two tokens; a third has none, its share goes to them.",
      reductions.task_weights,
      {**tasks, "num_tasks": 3, "share_I": [3.0, 1.0, 4.0]},
    ),
    case(
      "pair_mean",
      "The second pair is padding.",
      mean(pair_mean),
      {"x_P": [0.5, NAN, 2.0], "valid_P": [True, False, True]},
      by=("x_P",),
    ),
  ]


def _diagnostics() -> list[Case]:
  def ratio_moments(log_ratio_BT, mask_BT, version_BT, num_versions):
    found = diagnostics.by_version(log_ratio_BT, mask_BT, version_BT)
    columns = np.transpose(
      [found.get(z, (0.0,) * 6) for z in range(num_versions)]
    )
    names = (
      "share",
      "effective_sample_size",
      "mean_weight",
      "kl",
      "kl_k1",
      "abs_log_ratio",
    )
    return {f"{n}()": x for n, x in zip(names, columns, strict=True)}

  def clip_fractions(log_ratio_BT, advantage_BT, mask_BT, **clip):
    shares = diagnostics.clip_fractions(
      log_ratio_BT, advantage_BT, mask_BT, **clip
    )
    return {name: {"value()": share} for name, share in shares.items()}

  def extremes(x_BT, mask_BT):
    return {
      "low": min(x_BT[mask_BT], default=math.inf),
      "high": max(x_BT[mask_BT], default=-math.inf),
    }

  ratios = {"log_ratio_BT": LOG_RATIO_BT, "mask_BT": RATIO_MASK_BT}
  return [
    case(
      "ratio_moments",
      "By the age of the version that sampled; nothing is one update old.",
      ratio_moments,
      {
        **ratios,
        "version_BT": [[0, 0, 2, 9], [2, 2, 9, 9]],
        "num_versions": 3,
      },
    ),
    case(
      "clip_fractions",
      "Of five tokens one rose enough, two fell enough, one rose too far.",
      clip_fractions,
      {
        **ratios,
        "advantage_BT": [[1.0, 2.0, -1.0, NAN], [-0.5, -1.0, NAN, NAN]],
        "clip_low": 0.25,
        "clip_high": 0.25,
        "dual_clip": 3.0,
      },
    ),
    case(
      "extremes",
      "On the mask.",
      extremes,
      {"x_BT": LOG_RATIO_BT, "mask_BT": RATIO_MASK_BT},
    ),
    case(
      "extremes",
      "Of nothing.",
      extremes,
      {"x_BT": [[NAN]], "mask_BT": [[False]]},
    ),
  ]


def _prompt_dependence() -> list[Case]:
  def values(reference):
    def named(**arguments):
      found = reference(**arguments)
      return {name: {"value()": value} for name, value in found.items()}

    return named

  # The second prompt was not scored for the first answer; the third pair is
  # padding. The fourth answer has a tie with its own prompt.
  pairs = {
    "logprob_NN": [
      [-1.0, NAN, NAN, -3.0],
      [-6.0, -2.0, NAN, -2.5],
      [NAN, NAN, NAN, NAN],
      [-4.0, -1.0, NAN, -4.0],
    ],
    "valid_NN": [
      [True, False, False, True],
      [True, True, False, True],
      [False] * 4,
      [True, True, False, True],
    ],
  }
  information = values(prompt_dependence.mutual_information)
  return [
    case(
      "mutual_information",
      "Three answers, scored under two prompts or three.",
      information,
      pairs,
    ),
    case(
      "mutual_information",
      "The same by token.",
      information,
      {**pairs, "num_tokens_N": [1, 4, 0, 2]},
    ),
    case(
      "retrieval_accuracy",
      "The first two prompts are found, the last is second or third.",
      values(prompt_dependence.retrieval_accuracy),
      {**pairs, "k": 2},
    ),
  ]
