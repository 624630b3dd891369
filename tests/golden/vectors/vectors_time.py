"""Cases of credit over time, and of the critic that it is measured with."""

import math

from tests.golden.vectors.cases import Case, case
from tests.reference import value
from tests.reference.advantages import returns, turns

NAN = math.nan

# Two sequences in the first row, an observation within each; then padding.
MASK_BT = [[True, False, True, True, False, True], [False] * 6]
REWARD_BT = [[0.0, NAN, 1.0, 0.0, NAN, -0.5], [NAN] * 6]
VALUE_BT = [[0.5, NAN, 0.25, 1.0, NAN, -0.25], [NAN] * 6]
SEGMENT_BT = [[0, 0, 0, 1, 1, 1], [0] * 6]
# Three turns, the first of two tokens, with observations between them.
TURN_MASK_BT = [[True, True, False, True, False, True], [False] * 6]
TURN_REWARD_BT = [[0.25, 0.0, NAN, 0.5, NAN, 1.0], [NAN] * 6]
TURN_VALUE_BT = [[0.5, 0.75, NAN, 0.25, NAN, -0.5], [NAN] * 6]
TURN_BT = [[0, 0, 0, 1, 1, 2], [0] * 6]

TOKENS = {
  "reward_BT": REWARD_BT,
  "value_BT": VALUE_BT,
  "mask_BT": MASK_BT,
}
TURNS = {
  "reward_BT": TURN_REWARD_BT,
  "value_BT": TURN_VALUE_BT,
  "mask_BT": TURN_MASK_BT,
  "turn_BT": TURN_BT,
}
BOTH = ("advantage_BT", "return_BT")


def cases() -> dict[str, list[Case]]:
  return {
    "advantages/returns": _returns(),
    "advantages/turns": _turns(),
    "value": _value(),
  }


def _without(arguments, name):
  return {key: x for key, x in arguments.items() if key != name}


def _returns() -> list[Case]:
  packed = {"discount": 0.5, "segment_BT": SEGMENT_BT}
  return [
    case(
      "gae",
      "One sequence per row: observations take no time.",
      returns.gae,
      {**TOKENS, "discount": 0.5, "gae_lambda": 0.75},
      names=BOTH,
    ),
    case(
      "gae",
      "The same, but two sequences in the first row.",
      returns.gae,
      {**TOKENS, **packed, "gae_lambda": 0.75},
      names=BOTH,
    ),
    case(
      "discounted_returns",
      "Nothing reaches from one sequence of a row into another.",
      returns.discounted_returns,
      {**_without(TOKENS, "value_BT"), **packed},
    ),
  ]


def _turns() -> list[Case]:
  packed = {"segment_BT": [[0, 0, 0, 1, 1, 1], [0] * 6]}
  return [
    case(
      "turn_gae",
      "Three turns; the first has two tokens, and its value is read at the "
      "first of them.",
      turns.turn_gae,
      {**TURNS, "discount": 0.5, "gae_lambda": 0.75},
      names=BOTH,
    ),
    case(
      "turn_gae",
      "The first turn is a sequence of its own.",
      turns.turn_gae,
      {**TURNS, "discount": 0.5, "gae_lambda": 0.75, **packed},
      names=BOTH,
    ),
    case(
      "turn_returns",
      "The discount counts turns, not tokens.",
      turns.turn_returns,
      {**_without(TURNS, "value_BT"), "discount": 0.5},
    ),
    case(
      "bi_level_gae",
      "Between turns by their last tokens' values, then within each turn.",
      turns.bi_level_gae,
      {**TURNS, "discount": 0.75, "turn_discount": 0.5, "gae_lambda": 0.5},
      names=BOTH,
    ),
    case(
      "first_of_turn",
      "A turn's first trained token.",
      turns.first_of_turn,
      {"mask_BT": TURN_MASK_BT, "turn_BT": TURN_BT},
    ),
  ]


def _value() -> list[Case]:
  values = {
    "value_BT": [[1.75, 2.0, -1.0], [0.5, NAN, NAN]],
    "old_value_BT": [[0.75, 1.0, 0.5], [0.5, NAN, NAN]],
    "return_BT": [[2.0, 0.0, 0.25], [0.75, NAN, NAN]],
  }
  mask_BT = [[True, True, True], [True, False, False]]

  def loss(value_BT, old_value_BT, return_BT, mask_BT, clip):
    loss_BT = value.clipped_value_loss(
      value_BT, old_value_BT, return_BT, clip=clip
    )
    loss_BT[~mask_BT] = 0
    return loss_BT

  def explained(value_BT, return_BT, mask_BT):
    share = value.explained_variance(value_BT, return_BT, mask_BT)
    return {"value()": share}

  return [
    case(
      "clipped_value_loss",
      "Three tokens have moved too far, the first of them towards its return: "
      "only its gradient stops.",
      loss,
      {**values, "mask_BT": mask_BT, "clip": 0.5},
      by=("value_BT",),
    ),
    case(
      "explained_variance",
      "Of the returns on the mask.",
      explained,
      {**_without(values, "old_value_BT"), "mask_BT": mask_BT},
    ),
    case(
      "explained_variance",
      "Returns that do not vary: 0.",
      explained,
      {
        "value_BT": [[1.0, 2.0]],
        "return_BT": [[0.5, 0.5]],
        "mask_BT": [[True, True]],
      },
    ),
  ]
