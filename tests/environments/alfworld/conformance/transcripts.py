"""Plays recorded attempts again, and compares what is said.

The recorder kept each distinct message once: where an answer, or the reply to
it, repeats an earlier one word for word, it is missing. A reply that was said
before may therefore be absent, and where an answer is, the earlier ones are
tried, the latest first.
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
  """What was recorded, beside what is said here; None for nothing."""

  opening: bool = False
  replies: list = dataclasses.field(default_factory=list)
  status: str = ""
  reward: float = 0.0


def read(path) -> list[Recorded]:
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    entries = [json.loads(line) for line in lines]
  # An attempt that broke has no result.
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
  """Every recorded reply with the one given here, and how it ends."""
  outcome = Outcome()
  step, played = await _play(game, ())
  outcome.opening = recorded.messages[:2] == step.messages
  said = [*recorded.messages[:2]]
  for message in recorded.messages[2:]:
    if message.role == "assistant":
      step, played = await _play(game, (*played, message))
      heard = step.messages
    else:
      if (not heard or heard[0] in said) and heard[:1] != (message,):
        step, played = await _again(game, played, message)
        heard = step.messages
      outcome.replies.append((message, heard[0] if heard else None))
      heard = ()
    said.append(message)
  step = await _end(game, played, recorded)
  outcome.status, outcome.reward = step.status.value, step.reward
  return outcome


async def _end(game, played, recorded: Recorded):
  """The last step; answers that are missing at the end are some earlier one."""
  for answer in reversed(dict.fromkeys(played)):
    rest = (answer,) * (MAX_ROUNDS - len(played))
    step, _ = await _play(game, (*played, *rest))
    if (step.status.value, step.reward) == (recorded.status, recorded.reward):
      break
  return step


async def _again(game, played, reply):
  """An earlier answer, given again, that explains a reply."""
  for answer in reversed(dict.fromkeys(played)):
    step, now = await _play(game, (*played, answer))
    if step.messages == (reply,):
      return step, now
  return await _play(game, (*played, played[-1]))


async def _play(game, answers):
  """The last step of an attempt, and the answers that were taken."""
  async with PythonEngine().open(game) as play:
    rules = Rules(max_rounds=MAX_ROUNDS, upstream_quirks=True)
    session = ALFSession(play, rules, kind="any")
    step = await session.reset()
    for count, answer in enumerate(answers):
      if step.status is not Status.RUNNING:
        return step, answers[:count]
      step = await session.step(answer)
  return step, answers
