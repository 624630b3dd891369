"""One trajectory as the page shows it: messages, and per answer its tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import LearnedTurn, Trajectory, Turn
from launch.reports.episodes import (
  Episode,
  MessageView,
  line_title,
  message_views,
)

_DIGITS = 4  # of log-probabilities


def trajectory_to_page(
  trajectory: Trajectory,
  codec: ChatCodec | None,
  learned: Sequence[LearnedTurn] | None = None,
) -> dict[str, Any]:
  """Returns the JSON of one trajectory.

  `messages` are the transcript. `turns` have the tokens that were read and
  sampled, as texts, and of each sampled token its log-probability under the
  distribution that it was drawn from, that at temperature 1 (nats), and its
  version; if the turn was trained on, also the learner's log-probability and
  the advantage. Without a codec the tokens are numbers.
  """
  views = message_views(Episode(trajectory=trajectory, title=""))
  return {
    "messages": [_message(view) for view in views],
    "turns": [
      _turn(turn, codec)
      | {"line_title": line_title(trajectory, turn.line)}
      | (_learned(learned[n]) if learned else {})
      for n, turn in enumerate(trajectory.turns)
    ],
    "metrics": dict(trajectory.metrics),
    "seed": trajectory.seed,
    "policy_slot_weights": list(trajectory.policy_slot_weights),
  }


def _message(view: MessageView) -> dict[str, Any]:
  return {
    "role": view.role,
    "line_title": view.line_title,
    "content": view.content,
    "calls": [dataclasses.asdict(call) for call in view.calls],
    "turn": view.turn.number - 1 if view.turn else None,
  }


def _turn(turn: Turn, codec: ChatCodec | None) -> dict[str, Any]:
  return {
    "policy_slot": turn.policy_slot,
    "reward": turn.reward,
    "has_grammar": bool(turn.grammar),
    "observation": _texts(turn.observation, codec),
    "sampled": _texts(turn.sampled, codec),
    "behavior_logprob": _rounded(turn.behavior_logprob),
    "raw_logprob": _rounded(turn.raw_logprob),
    "version": turn.version.tolist(),
  }


def _learned(turn: LearnedTurn) -> dict[str, Any]:
  if np.isnan(turn.logprob).any():
    return {}
  return {
    "learner_logprob": _rounded(turn.logprob),
    "advantage": _rounded(turn.advantage),
  }


def _texts(tokens: np.ndarray, codec: ChatCodec | None) -> Sequence[str]:
  """Returns each token as text; as a number where it has none."""
  decode = codec.decode if codec else lambda tokens: ""
  return [decode([token]) or f"[{token}]" for token in tokens.tolist()]


def _rounded(values: np.ndarray) -> list[float]:
  return [round(value, _DIGITS) for value in values.tolist()]
