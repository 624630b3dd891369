"""Replays recorded episodes and pairs their replies with ours.

The recorder kept each distinct message once: an answer, or a reply, that is
equal to an earlier message is missing. Where a reply does not follow from the
last answer, the earlier answers are tried, the latest first.
"""

import dataclasses
import gzip
import json

from agentrl_jax.data.messages import message_from_json
from agentrl_jax.data.trajectory import Status
from environments.alfworld.engines.engine import PythonEngine
from environments.alfworld.session import ALFSession, Rules

MAX_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class Recorded:
  index: int  # of the game, in the list that was played
  messages: tuple
  status: str
  reward: float


@dataclasses.dataclass
class Outcome:
  """Pairs of a recorded reply and ours, or None; equality of the opening."""

  opening: bool = False
  replies: list = dataclasses.field(default_factory=list)
  status: str = ""
  reward: float = 0.0


def read(path) -> list[Recorded]:
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    entries = [json.loads(line) for line in lines]
  # An episode that failed has no result.
  return [
    _recorded(e) for e in entries if e["output"] and e["output"]["result"]
  ]


def _recorded(entry) -> Recorded:
  result = entry["output"]["result"]
  return Recorded(
    index=entry["index"],
    messages=tuple(message_from_json(m) for m in result["messages"]),
    status=entry["output"]["status"],
    reward=float(result["reward"]),
  )


async def replay(recorded: Recorded, game) -> Outcome:
  """Plays the recorded answers and pairs every recorded reply with ours."""
  outcome = Outcome()
  step, played = await _play(game, ())
  outcome.opening = recorded.messages[:2] == step.messages
  earlier = [*recorded.messages[:2]]
  for message in recorded.messages[2:]:
    if message.role == "assistant":
      step, played = await _play(game, (*played, message))
      replies = step.messages
    else:
      if (not replies or replies[0] in earlier) and replies[:1] != (message,):
        step, played = await _repeat(game, played, message)
        replies = step.messages
      outcome.replies.append((message, replies[0] if replies else None))
      replies = ()
    earlier.append(message)
  step = await _end(game, played, recorded)
  outcome.status, outcome.reward = step.status.value, step.reward
  return outcome


async def _end(game, played, recorded: Recorded):
  """Plays the missing answers at the end: repeats of one earlier answer."""
  for answer in reversed(dict.fromkeys(played)):
    rest = (answer,) * (MAX_ROUNDS - len(played))
    step, _ = await _play(game, (*played, *rest))
    if (step.status.value, step.reward) == (recorded.status, recorded.reward):
      break
  return step


async def _repeat(game, played, reply):
  """Repeats the earlier answer that leads to a reply."""
  for answer in reversed(dict.fromkeys(played)):
    step, answers = await _play(game, (*played, answer))
    if step.messages == (reply,):
      return step, answers
  return await _play(game, (*played, played[-1]))


async def _play(game, answers):
  """Plays answers; returns the last step and the answers before the end."""
  async with PythonEngine().open(game) as play:
    rules = Rules(max_rounds=MAX_ROUNDS, upstream_quirks=True)
    session = ALFSession(play, rules, kind="any")
    step = await session.reset()
    for count, answer in enumerate(answers):
      if step.status is not Status.RUNNING:
        return step, answers[:count]
      step = await session.step(answer)
  return step, answers
