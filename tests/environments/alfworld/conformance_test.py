"""Compares replies with those recorded on AgentBench's workers, byte for byte.

The rooms are rebuilt from transcripts; where ALFWorld's games are installed,
the games themselves are played.

The recorder kept each distinct message once: an answer, or a reply, that is
equal to an earlier message is missing. Where a reply does not follow from the
last answer, the earlier answers are tried, the latest first.
"""

import dataclasses
import gzip
import json
import re
import unittest

import pytest

from agentrl_jax.data.records import Status, message_from_json
from environments.alfworld.games.game import AGENTBENCH, Game, Receptacle, Thing
from environments.alfworld.games.game_files import load_game
from environments.alfworld.games.tasks import PHRASES, TaskSpec, goal_of
from environments.alfworld.generation.catalogue import FITS, TRAITS_OF
from environments.alfworld.household import Household
from environments.alfworld.session import ALFSession
from environments.options import ALFWorldOptions
from tests.environments.alfworld import data

MAX_ROUNDS = 20
SEPARATOR = " AVAILABLE ACTIONS: "
OPENABLE = ("cabinet", "drawer", "fridge", "microwave", "safe")
HEAVY = ("bathtub", "curtains", "floorlamp", "houseplant", "mirror", "sink")
HEAVY += ("showerglass", "television", "window")
SLICE = TaskSpec("pick_and_place_simple", "slice", "nowhere")  # never won
# The dialect of the games about slices, and of no others.
OLDER = dataclasses.replace(
  AGENTBENCH, shows_opened=False, opens_one=True, uses_what_is_near=True
)


def read_rooms(path) -> dict[int, Game]:
  """Rebuilds AgentBench's test rooms from what transcripts show.

  The file has for each game: the receptacles in order, those that were opened,
  the contents that were seen, and the receptacles that share a location. Other
  contents are left empty.
  """
  rooms = json.loads(path.read_text(encoding="utf-8"))
  return {int(index): game_in(room) for index, room in rooms.items()}


def game_in(room) -> Game:
  names, contents = room["recs"], room["cont"]
  locations: dict[str, int] = {}
  for name in names:
    shared = [
      locations[n] for n in room["same"].get(name, ()) if n in locations
    ]
    locations[name] = shared[0] if shared else len(set(locations.values()))
  things = sorted(
    {o for inside in contents.values() for o in inside}, key=order
  )
  inside = {
    (things.index(o), r)
    for r, name in enumerate(names)
    for o in contents.get(name, ())
  }
  never_seen = set(names) - contents.keys()
  openable = {name for name in never_seen if type_of(name) in OPENABLE}
  openable |= set(room["openable"])
  spec = spec_of(room["desc"])
  return Game(
    receptacles=tuple(
      Receptacle(n, type_of(n), locations[n], is_openable=n in openable)
      for n in names
    ),
    things=tuple(Thing(n, type_of(n), traits_of(type_of(n))) for n in things),
    num_locations=len(names) + 1,
    start=len(names),
    inside=frozenset(inside),
    at=frozenset((o, locations[names[r]]) for o, r in inside),
    fits=frozenset((r, o) for o, kinds in FITS.items() for r in kinds),
    goal=goal_of(spec),
    task=room["desc"],
    dialect=OLDER if spec is SLICE else AGENTBENCH,
  )


def spec_of(desc) -> TaskSpec:
  for kind, phrases in PHRASES.items():
    for phrase in phrases:
      pattern = re.escape(phrase).replace(r"\{o\}", r"([a-z]+)")
      match = re.fullmatch(pattern.replace(r"\{r\}", r"([a-z]+)"), desc)
      if match:
        return TaskSpec(kind, match[1], match[2])
  return SLICE


def traits_of(kind) -> frozenset[str]:
  unknown = frozenset() if kind in HEAVY else frozenset({"pickupable"})
  return TRAITS_OF.get(kind, unknown)


def order(name) -> tuple[str, int]:
  kind, count = name.split()
  return f"{kind}_", -int(count)


def type_of(name) -> str:
  return name.split()[0]


@dataclasses.dataclass
class Tally:
  """Counts recorded messages, and those that are equal to ours."""

  num_replies: int = 0
  num_episodes: int = 0
  equal_observations: int = 0
  equal_action_lists: int = 0
  equal_openings: int = 0
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
    self.equal_openings += messages[:2] == step.messages
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
  @pytest.mark.slow
  async def test_rebuilt_rooms(self):
    rooms = read_rooms(data.partial_rooms())
    for path in data.transcripts():
      tally = Tally()
      await tally.add_file(path, rooms.__getitem__)
      num_replies, num_episodes = tally.num_replies, tally.num_episodes
      with self.subTest(path.name, tally=tally):
        self.assertGreater(num_replies, 500)
        self.assertGreaterEqual(tally.equal_observations / num_replies, 0.97)
        self.assertGreaterEqual(tally.equal_action_lists / num_replies, 0.94)
        self.assertEqual(tally.equal_openings, num_episodes)
        self.assertGreaterEqual(tally.equal_endings / num_episodes, 0.95)

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
