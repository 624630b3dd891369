"""Compares replies with those recorded on AgentBench's workers, byte for byte.

The rooms are rebuilt from transcripts; where ALFWorld's games are installed,
the games themselves are played.
"""

import dataclasses
import json
import unittest

import pytest

from environments.alfworld.games.game_files import load_game
from tests.environments.alfworld import data
from tests.environments.alfworld.conformance import transcripts
from tests.environments.alfworld.conformance.partial_rooms import read_rooms

SEPARATOR = " AVAILABLE ACTIONS: "


@dataclasses.dataclass
class Tally:
  num_replies: int = 0
  num_episodes: int = 0
  # Equal to the recorded ones:
  observations: int = 0
  action_lists: int = 0
  openings: int = 0
  endings: int = 0

  def add(self, recorded, outcome) -> None:
    self.num_episodes += 1
    self.openings += outcome.opening
    self.endings += (outcome.status, outcome.reward) == (
      recorded.status,
      recorded.reward,
    )
    for expected, reply in outcome.replies:
      self.num_replies += 1
      if reply is not None and reply.role == expected.role:
        ours = reply.content.partition(SEPARATOR)
        theirs = expected.content.partition(SEPARATOR)
        self.observations += ours[0] == theirs[0]
        self.action_lists += ours[1:] == theirs[1:]


async def tally(path, game_of) -> Tally:
  total = Tally()
  for recorded in transcripts.read(path):
    game = game_of(recorded.index)
    total.add(recorded, await transcripts.replay(recorded, game))
  return total


class TranscriptsTest(unittest.IsolatedAsyncioTestCase):
  async def test_rebuilt_rooms(self):
    rooms = read_rooms(data.partial_rooms())
    for path in data.transcripts():
      total = await tally(path, rooms.__getitem__)
      with self.subTest(path.name, total=total):
        self.assertGreater(total.num_replies, 500)
        self.assertGreaterEqual(total.observations / total.num_replies, 0.97)
        self.assertGreaterEqual(total.action_lists / total.num_replies, 0.94)
        self.assertEqual(total.openings, total.num_episodes)
        self.assertGreaterEqual(total.endings / total.num_episodes, 0.95)

  @pytest.mark.full
  async def test_alfworlds_own_games(self):
    folder = data.games()
    lists = json.loads(data.game_list("new_std").read_text(encoding="utf-8"))
    paths = [folder / path for paths in lists.values() for path in paths]
    for path in data.transcripts():
      total = await tally(path, lambda index: load_game(paths[index]))
      with self.subTest(path.name, total=total):
        self.assertEqual(total.observations, total.num_replies)
        self.assertEqual(total.action_lists, total.num_replies)
        self.assertEqual(total.endings, total.num_episodes)


if __name__ == "__main__":
  unittest.main()
