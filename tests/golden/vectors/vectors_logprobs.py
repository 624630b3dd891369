"""Cases of what the policy says about tokens, and of imitation."""

import math

from tests.golden.vectors.cases import Case, case
from tests.reference import logprobs

BARRED = -math.inf

LOGITS_BTV = [
  [[1.0, 0.5, -1.0], [0.0, 0.0, 0.0]],
  [[2.0, BARRED, 1.5], [-3.0, 4.0, 0.25]],
]
TOKEN_BT = [[0, 2], [2, 1]]
HIDDEN_BTD = [
  [[1.0, -0.5], [0.25, 2.0], [-1.0, 0.5]],
  [[math.nan] * 2] * 3,
]
OUTPUT_DV = [[0.5, -1.0, 0.25, 0.0], [1.0, 0.5, -0.75, 0.25]]
FUSED_TOKEN_BT = [[3, 0, 1], [0, 0, 0]]
FUSED_MASK_BT = [[True, False, True], [False, False, False]]


def cases() -> dict[str, list[Case]]:
  return {
    "logprobs/logits": _logprobs(),
    "logprobs/fused": _fused_logprobs(),
  }


def _logprobs() -> list[Case]:
  finite_BTV = [LOGITS_BTV[0], [[2.0, -1.0, 1.5], LOGITS_BTV[1][1]]]
  logits = {"logits_BTV": LOGITS_BTV, "temperature": 0.5}
  finite = {"logits_BTV": finite_BTV, "temperature": 0.5}
  return [
    case(
      "token_logprob",
      "One word is barred from the third token's choice.",
      logprobs.token_logprob,
      {**logits, "token_BT": TOKEN_BT},
    ),
    case(
      "token_logprob",
      "Finite logits, and the gradient.",
      logprobs.token_logprob,
      {**finite, "token_BT": TOKEN_BT},
      by=("logits_BTV",),
    ),
    case(
      "entropy",
      "log 3 for the second token; a barred word contributes nothing.",
      logprobs.entropy,
      logits,
    ),
    case(
      "entropy",
      "Finite logits, and the gradient.",
      logprobs.entropy,
      finite,
      by=("logits_BTV",),
    ),
  ]


def _fused_logprobs() -> list[Case]:
  return [
    case(
      "fused_token_logprob",
      "An observed token, and a row of padding. The gradient is of the "
      "log-probabilities.",
      logprobs.fused_token_logprob,
      {
        "hidden_BTD": HIDDEN_BTD,
        "output_DV": OUTPUT_DV,
        "token_BT": FUSED_TOKEN_BT,
        "mask_BT": FUSED_MASK_BT,
        "temperature": 0.5,
        "chunk_size": 2,
      },
      names=("logprob_BT", "entropy_BT"),
      by=("hidden_BTD", "output_DV"),
    )
  ]
