"""What AgentBench's own workers said, said again.

Byte for byte, on rooms rebuilt from what transcripts show of them, and, where
ALFWorld's games are at hand, on the games themselves.
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
  observations: int = 0  # that are the same
  action_lists: int = 0
  openings: int = 0
  endings: int = 0
  num_attempts: int = 0

  def add(self, recorded, outcome) -> None:
    self.num_attempts += 1
    self.openings += outcome.opening
    self.endings += (outcome.status, outcome.reward) == (
      recorded.status,
      recorded.reward,
    )
    for wanted, said in outcome.replies:
      self.num_replies += 1
      if said is not None and said.role == wanted.role:
        ours, theirs = (m.content.partition(SEPARATOR) for m in (said, wanted))
        self.observations += ours[0] == theirs[0]
        self.action_lists += ours[1:] == theirs[1:]


async def tally(path, game_of) -> Tally:
  total = Tally()
  for recorded in transcripts.read(path):
    game = game_of(recorded.index)
    total.add(recorded, await transcripts.replay(recorded, game))
  return total


class TranscriptsTest(unittest.IsolatedAsyncioTestCase):
  async def test_rooms_as_far_as_they_are_known(self):
    rooms = read_rooms(data.partial_rooms())
    for path in data.transcripts():
      total = await tally(path, rooms.__getitem__)
      with self.subTest(path.name, total=total):
        self.assertGreater(total.num_replies, 500)
        self.assertGreaterEqual(total.observations / total.num_replies, 0.97)
        self.assertGreaterEqual(total.action_lists / total.num_replies, 0.94)
        self.assertEqual(total.openings, total.num_attempts)
        self.assertGreaterEqual(total.endings / total.num_attempts, 0.95)

  @pytest.mark.full
  async def test_the_games_themselves(self):
    folder = data.games()
    lists = json.loads(data.game_list("new_std").read_text(encoding="utf-8"))
    paths = [folder / path for paths in lists.values() for path in paths]
    for path in data.transcripts():
      total = await tally(path, lambda index: load_game(paths[index]))
      with self.subTest(path.name, total=total):
        self.assertEqual(total.observations, total.num_replies)
        self.assertEqual(total.action_lists, total.num_replies)
        self.assertEqual(total.endings, total.num_attempts)


if __name__ == "__main__":
  unittest.main()
