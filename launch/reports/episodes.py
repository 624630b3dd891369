"""Lays a trajectory's records and its transcript side by side for the pages.

Nothing is parsed but the arguments of calls: the policy's text is shown as it
is, valid or not.
"""

import collections
import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.marked_text import IN_TEXT
from agentrl_jax.data.records import (
  LearnedTurn,
  Message,
  Trajectory,
  Turn,
  message_from_json,
  unicode_json,
)
from launch.reports.schema import (
  CallView,
  ListedTrajectory,
  Listing,
  MessageView,
  TrajectoryPage,
  TurnView,
)

_DIGITS = 4  # of log-probabilities
# A question of the viewer's script, and the answer: see launch.reports.schema.
Answer = tuple[str, object]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
  """A trajectory to show; those of one group stand side by side.

  Without a codec its tokens are numbers.
  """

  trajectory: Trajectory
  title: str  # whose episode, as in "after RL"
  group: str = "0"
  codec: ChatCodec | None = None


def viewer_answers(episodes: Sequence[Episode]) -> list[Answer]:
  """Returns the list of episodes, and the page of each."""
  groups = collections.defaultdict(list)
  for episode in episodes:
    groups[episode.group].append(episode)
  rows, pages = [], []
  for group, shown in groups.items():
    mean = statistics.fmean(each.trajectory.reward for each in shown)
    for n, each in enumerate(shown):
      id = f"{group}.{n}"
      row = listed_trajectory(
        each.trajectory, id=id, group=group, played=each.title, group_mean=mean
      )
      rows.append(row)
      page = trajectory_page(each.trajectory, each.codec)
      pages.append((f"trajectories/{id}", page))
  return [("trajectories", Listing(trajectories=rows)), *pages]


def listed_trajectory(
  trajectory: Trajectory,
  *,
  id: str,
  group: str,
  played: str,
  group_mean: float,
  update: int | None = None,
) -> ListedTrajectory:
  """Returns the row of a trajectory in the list."""
  versions = [v for turn in trajectory.turns for v in turn.version.tolist()]
  return ListedTrajectory(
    id=id,
    group=group,
    played=played,
    update=update,
    task=trajectory.task.name,
    split=trajectory.task.split,
    index=trajectory.task.index,
    attempt=trajectory.attempt,
    status=trajectory.status.value,
    is_success=trajectory.is_success,
    reward=trajectory.reward,
    group_mean=group_mean,
    num_turns=len(trajectory.turns),
    num_cut=sum(turn.is_cut for turn in trajectory.turns),
    num_tokens=trajectory.num_tokens,
    num_sampled=trajectory.num_sampled,
    oldest_version=min(versions, default=-1),
    newest_version=max(versions, default=-1),
    policy_slots=sorted({turn.policy_slot for turn in trajectory.turns}),
  )


def trajectory_page(
  trajectory: Trajectory,
  codec: ChatCodec | None,
  learned: Sequence[LearnedTurn] | None = None,
) -> TrajectoryPage:
  """Returns the page of one trajectory; `learned` has an entry per turn.

  Without a codec the tokens are numbers.
  """
  return TrajectoryPage(
    messages=_messages(trajectory),
    turns=[
      _turn(
        turn,
        codec,
        learned[n] if learned else None,
        _line_title(trajectory, turn.line),
      )
      for n, turn in enumerate(trajectory.turns)
    ],
    metrics=dict(trajectory.metrics),
  )


def _messages(trajectory: Trajectory) -> list[MessageView]:
  """Returns the transcript, with the turn of each answer.

  Answers in the prompt (worked examples, or those of another line) come first
  and have no turn, so turns are matched to answers from the end of each line.
  """
  lines: dict[int, list[Message]] = {}
  for body in trajectory.transcript:
    line = body.get("line", 0)
    assert isinstance(line, int)
    lines.setdefault(line, []).append(message_from_json(body))
  views = []
  for line, messages in lines.items():
    turns = [n for n, turn in enumerate(trajectory.turns) if turn.line == line]
    num_answers = sum(message.role == "assistant" for message in messages)
    numbers = iter([*[None] * max(num_answers - len(turns), 0), *turns])
    views += [
      MessageView(
        role=message.role,
        line_title="" if place else _line_title(trajectory, line),
        content=message.content,
        calls=[_call(c.name, c.arguments) for c in message.tool_calls],
        turn=next(numbers) if message.role == "assistant" else None,
      )
      for place, message in enumerate(messages)
    ]
  return views


def _line_title(trajectory: Trajectory, line: int) -> str:
  """Names a line of tokens; "" if the trajectory has one without a role."""
  role = trajectory.role_of(line)
  if not role and len(trajectory.lines) < 2:
    return ""
  return f"line {line + 1}" + (f", {role}" if role else "")


def _call(name: str, arguments: str) -> CallView:
  """Formats JSON arguments one per line, strings unquoted; keeps other text."""
  try:
    parsed: Any = unicode_json(json.loads(arguments))
  except (ValueError, RecursionError):
    return CallView(name=name, arguments=arguments, is_json=False)
  if isinstance(parsed, Mapping):
    text = "\n".join(f"{key}: {_value(parsed[key])}" for key in parsed)
  else:
    text = json.dumps(parsed, indent=2, ensure_ascii=False)
  return CallView(name=name, arguments=text, is_json=True)


def _value(value: Any) -> str:
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)


def _turn(
  turn: Turn,
  codec: ChatCodec | None,
  learned: LearnedTurn | None,
  line_title: str,
) -> TurnView:
  if learned is not None and np.isnan(learned.logprob).any():
    learned = None
  return TurnView(
    line_title=line_title,
    policy_slot=turn.policy_slot,
    reward=turn.reward,
    has_grammar=bool(turn.grammar),
    is_cut=turn.is_cut,
    observation=_texts(turn.observation, codec),
    sampled=_texts(turn.sampled, codec),
    behavior_logprob=_rounded(turn.behavior_logprob),
    raw_logprob=_rounded(turn.raw_logprob),
    version=turn.version.tolist(),
    learner_logprob=_rounded(learned.logprob) if learned else [],
    advantage=_rounded(learned.advantage) if learned else [],
  )


def _texts(tokens: np.ndarray, codec: ChatCodec | None) -> list[str]:
  """Returns each token as text; as a number where it has none."""
  return [
    codec and codec.decode([token], after=IN_TEXT) or f"[{token}]"
    for token in tokens.tolist()
  ]


def _rounded(values: np.ndarray) -> list[float]:
  return [round(value, _DIGITS) for value in values.tolist()]
