"""One episode for the report, turn by turn and call by call.

Lays a trajectory's records and its transcript side by side without parsing:
the policy's text is shown as it is, valid or not.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import (
  Message,
  Trajectory,
  Turn,
  message_from_json,
  unicode_json,
)

SHORT = 600  # characters that are shown without a click
LEAD = 120  # characters of a folded content that are shown all the same
_GAP_STEPS = (0.05, 0.2, 0.7)  # nats: from likely noise to a factor of two
_UNSURE_STEPS = (0.2, 0.7, 1.6)  # nats: less than 82, 50, 20 %


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
  """A trajectory to show, with the text and log-probabilities of its tokens.

  `token_text` and `policy_logprob` have one entry per turn, each with one entry
  per sampled token: the token as text, and its log-probability under the policy
  that is compared with the sampler's, at the sampler's temperature (so none for
  a greedy sampler). Without the texts no token is shown; without the
  log-probabilities the shade shows the sampler's uncertainty.
  """

  trajectory: Trajectory
  title: str  # whose episode, as in "after RL, greedy"
  token_text: Sequence[Sequence[str]] = ()
  policy_logprob: Sequence[np.ndarray] = ()

  def __post_init__(self) -> None:
    sizes = [len(turn.sampled) for turn in self.trajectory.turns]
    for name in ("token_text", "policy_logprob"):
      given = getattr(self, name)
      if len(given) and [len(each) for each in given] != sizes:
        raise ValueError(
          f"{name} has {[len(each) for each in given]} tokens per turn, but "
          f"{sizes} were sampled; give one entry per sampled token"
        )


@dataclasses.dataclass(frozen=True)
class CallView:
  """A tool call with formatted arguments."""

  name: str
  arguments: str
  is_json: bool


@dataclasses.dataclass(frozen=True)
class TokenView:
  """A sampled token, and its shade.

  If two policies are compared, the shade is their difference; else the
  uncertainty of the sampler.
  """

  text: str
  level: int  # 0 none; 1 to 3 likelier now; -1 to -3 rarer now, or unsure
  hint: str


@dataclasses.dataclass(frozen=True)
class TurnView:
  """Records of one answer beside its text."""

  number: int
  policy_slot: int
  version: str
  num_tokens: int
  mean_logprob: float | None
  reward: float
  tokens: tuple[TokenView, ...]
  line: int


@dataclasses.dataclass(frozen=True)
class MessageView:
  """One message; `turn` belongs to the policy's answers."""

  role: str
  content: str
  calls: tuple[CallView, ...]
  turn: TurnView | None
  line_title: str = ""  # on the first message of each line, if of several

  @property
  def is_long(self) -> bool:
    """Says if the content is folded at first."""
    limit = LEAD if self.role == "system" else SHORT
    return len(self.content) > limit

  @property
  def lead(self) -> str:
    """Beginning of a long content, shown while it is folded."""
    return " ".join(self.content[:LEAD].split())


def message_views(episode: Episode) -> list[MessageView]:
  """Returns the transcript, with the turn's records beside each answer.

  Answers in the prompt (worked examples, or those of another line) come first
  and have no turn, so turns are matched to answers from the end of each line.
  """
  turns = turn_views(episode)
  lines: dict[int, list[Message]] = {}
  for body in episode.trajectory.transcript:
    line = body.get("line", 0)
    assert isinstance(line, int)
    lines.setdefault(line, []).append(message_from_json(body))
  views = []
  for line, messages in lines.items():
    own = [x for x in turns if x.line == line]
    first, *rest = _line_views(messages, own)
    title = line_title(episode.trajectory, line)
    views += [dataclasses.replace(first, line_title=title), *rest]
  return views


def line_title(trajectory: Trajectory, line: int) -> str:
  """Names a line of tokens; "" if the trajectory has one without a role."""
  role = trajectory.role_of(line)
  if not role and len(trajectory.lines) < 2:
    return ""
  return f"line {line + 1}" + (f", {role}" if role else "")


def _line_views(
  messages: Sequence[Message], turns: Sequence[TurnView]
) -> list[MessageView]:
  num_answers = sum(message.role == "assistant" for message in messages)
  waiting: list[TurnView | None] = [None] * max(num_answers - len(turns), 0)
  answers = iter([*waiting, *turns])
  return [
    _message_view(m, next(answers) if m.role == "assistant" else None)
    for m in messages
  ]


def turn_views(episode: Episode) -> list[TurnView]:
  """Returns the records of each answer."""
  return [
    TurnView(
      number=number + 1,
      policy_slot=turn.policy_slot,
      version=_version(turn),
      num_tokens=len(turn.sampled),
      mean_logprob=(
        float(turn.raw_logprob.mean()) if len(turn.raw_logprob) else None
      ),
      reward=turn.reward,
      tokens=_token_views(episode, number),
      line=turn.line,
    )
    for number, turn in enumerate(episode.trajectory.turns)
  ]


def _message_view(message: Message, turn: TurnView | None) -> MessageView:
  calls = tuple(
    CallView(call.name, *_set_out(call.arguments))
    for call in message.tool_calls
  )
  return MessageView(message.role, message.content, calls, turn)


def _set_out(arguments: str) -> tuple[str, bool]:
  """Formats JSON arguments one per line, strings unquoted; keeps other text."""
  try:
    parsed: Any = unicode_json(json.loads(arguments))
  except (ValueError, RecursionError):
    return arguments, False
  if not isinstance(parsed, Mapping):
    return json.dumps(parsed, indent=2, ensure_ascii=False), True
  lines = [f"{name}: {_value(value)}" for name, value in parsed.items()]
  return "\n".join(lines), True


def _value(value: Any) -> str:
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)


def _version(turn: Turn) -> str:
  """Weights behind an answer; two if they changed during the answer."""
  if not len(turn.version):
    return "none"
  first, last = int(turn.version.min()), int(turn.version.max())
  if last < 0:
    return "no policy"
  return f"step {first}" if first == last else f"steps {first} to {last}"


def _token_views(episode: Episode, number: int) -> tuple[TokenView, ...]:
  if not len(episode.token_text):
    return ()
  texts = episode.token_text[number]
  behavior = episode.trajectory.turns[number].behavior_logprob
  if not len(episode.policy_logprob):
    raw = episode.trajectory.turns[number].raw_logprob
    return tuple(
      _unsure(text, float(logprob))
      for text, logprob in zip(texts, raw, strict=True)
    )
  return tuple(
    _token_view(text, float(sampler), float(policy))
    for text, sampler, policy in zip(
      texts, behavior, episode.policy_logprob[number], strict=True
    )
  )


def _unsure(text: str, logprob: float) -> TokenView:
  level = sum(-logprob >= step for step in _UNSURE_STEPS)
  return TokenView(text, -level, f"probability {math.exp(logprob):.3f}")


def _token_view(text: str, sampler: float, policy: float) -> TokenView:
  gap = policy - sampler
  size = sum(abs(gap) >= step for step in _GAP_STEPS)
  hint = f"policy {policy:.3f}, sampler {sampler:.3f}"
  return TokenView(text, size if gap > 0 else -size, hint)
