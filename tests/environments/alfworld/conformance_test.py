"""Compares replies with those recorded on AgentBench's workers, byte for byte.

ALFWorld's own games are played, where they are installed.

The recorder kept each distinct message once: an answer, or a reply, that is
equal to an earlier message is missing. Where a reply does not follow from the
last answer, the earlier answers are tried, the latest first.
"""

import dataclasses
import gzip
import json
import unittest

import pytest

from agentrl_jax.data.records import Status, message_from_json
from environments.alfworld.games.game_files import load_game
from environments.alfworld.household import Household
from environments.alfworld.session import ALFSession
from environments.options import ALFWorldOptions
from tests.environments.alfworld import data

MAX_ROUNDS = 20
SEPARATOR = " AVAILABLE ACTIONS: "


@dataclasses.dataclass
class Tally:
  """Counts recorded messages, and those that are equal to ours."""

  num_replies: int = 0
  num_episodes: int = 0
  equal_observations: int = 0
  equal_action_lists: int = 0
  equal_endings: int = 0

  async def add_file(self, path, game_of) -> None:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
      episodes = [json.loads(line) for line in lines]
    for episode in episodes:
      output = episode["output"]
      if output and output["result"]:  # an episode that failed has no result
        game = game_of(episode["index"])  # in the list of games
        messages = tuple(map(message_from_json, output["result"]["messages"]))
        outcome = output["status"], float(output["result"]["reward"])
        await self.add_episode(game, messages, outcome)

  async def add_episode(self, game, messages, outcome) -> None:
    """Plays the recorded answers and compares all replies and the outcome."""
    self.num_episodes += 1
    step, played = await play(game, ())
    for index, message in enumerate(messages[2:], 2):
      if message.role == "assistant":
        step, played = await play(game, (*played, message))
        replies = step.messages
      else:
        is_old = not replies or replies[0] in messages[:index]
        if is_old and replies[:1] != (message,):
          replies, played = await repeat(game, played, message)
        if replies:
          self.add_reply(message, replies[0])
        self.num_replies += 1
        replies = ()
    # Answers that are missing at the end are repeats of one earlier answer.
    for answer in reversed(dict.fromkeys(played)):
      rest = (answer,) * (MAX_ROUNDS - len(played))
      step, _ = await play(game, (*played, *rest))
      if (step.status.value, step.reward) == outcome:
        self.equal_endings += 1
        break

  def add_reply(self, expected, reply) -> None:
    if reply.role == expected.role:
      ours = reply.content.partition(SEPARATOR)
      theirs = expected.content.partition(SEPARATOR)
      self.equal_observations += ours[0] == theirs[0]
      self.equal_action_lists += ours[1:] == theirs[1:]


async def repeat(game, played, reply):
  """Repeats the earlier answer that leads to a reply."""
  for answer in reversed(dict.fromkeys(played)):
    step, answers = await play(game, (*played, answer))
    if step.messages == (reply,):
      return step.messages, answers
  step, answers = await play(game, (*played, played[-1]))
  return step.messages, answers


async def play(game, answers):
  """Plays answers; returns the last step and the answers before the end."""
  rules = ALFWorldOptions(max_rounds=MAX_ROUNDS, upstream_quirks=True)
  session = ALFSession(Household(game), rules, kind="any")
  step = await session.reset()
  for count, answer in enumerate(answers):
    if step.status is not Status.RUNNING:
      return step, answers[:count]
    step = await session.step(answer)
  return step, answers


class TranscriptsTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.full
  async def test_alfworlds_own_games(self):
    folder = data.games()
    lists = json.loads(data.game_list("new_std").read_text(encoding="utf-8"))
    paths = [folder / path for paths in lists.values() for path in paths]
    for path in data.transcripts():
      tally = Tally()
      await tally.add_file(path, lambda index: load_game(paths[index]))
      with self.subTest(path.name, tally=tally):
        self.assertEqual(tally.equal_observations, tally.num_replies)
        self.assertEqual(tally.equal_action_lists, tally.num_replies)
        self.assertEqual(tally.equal_endings, tally.num_episodes)
