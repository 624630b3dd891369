"""Tests of FrozenLake: contract, moves, slips, and ways around the task."""

import collections
import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from studies.environments.frozen_lake import FrozenLake
from studies.environments.frozen_lake.grid import (
  GOAL,
  HOLE,
  MOVES,
  PLAYER,
  find,
  neighbour,
  read,
  shortest_way,
)
from tests.environments.answers import call
from tests.environments.playing import play_answers

TASK = Task("frozen_lake", "train", 1)


def move(direction):
  return call("move", {"direction": direction})


async def lake_of(environment, task=TASK):
  (step,) = await play_answers(environment, task)
  return read(step.messages[0].content)


async def places_of(environment, moves, *, seed, task=TASK):
  """Returns where the player stands after each move, and the last step."""
  async with environment.open(task, seed=seed) as session:
    step = await session.reset()
    places = []
    for direction in moves:
      if step.status is not Status.RUNNING:
        break
      step = await session.step(move(direction))
      places.append(find(read(step.messages[0].content), PLAYER))
  return places, step


class FrozenLakeContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return FrozenLake()


class LargeContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return FrozenLake(size=8, frozen=0.7, max_rounds=40, chance_by="task")


class SlipperyContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return FrozenLake(slip=2 / 3, max_rounds=30)

  async def test_expert_without_mistakes_reaches_the_top(self):
    rewards = collections.Counter()
    environment = self.make_environment()
    for task in self._tasks(environment, num_tasks=32):
      steps, _ = await self._play_expert(environment, task)
      rewards[steps[-1].reward] += 1
    self.assertEqual(set(rewards), {0.0, 1.0})  # it slips


class FrozenLakeTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_the_shortest_way_earns_the_reward(self):
    environment = FrozenLake()
    way = shortest_way(await lake_of(environment))
    places, step = await places_of(environment, way, seed=0)
    self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))
    self.assertEqual(places[-1], (3, 3))

  async def test_a_hole_ends_the_episode_without_reward(self):
    environment = FrozenLake()
    for index in range(20):
      task = Task("frozen_lake", "train", index)
      grid = await lake_of(environment, task)
      for direction in MOVES:
        row, column = neighbour(grid, (0, 0), direction)
        if grid[row][column] == HOLE:
          _, step = await places_of(environment, [direction], seed=0, task=task)
          self.assertEqual((step.reward, step.status), (0.0, Status.COMPLETED))
          return
    self.fail("no lake has a hole beside the start")

  async def test_moves_are_limited(self):
    _, step = await places_of(FrozenLake(max_rounds=3), ["up"] * 5, seed=0)
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(step.reward, 0.0)
    self.assertEqual(step.metrics["num_actions"], 3.0)

  async def test_every_lake_has_a_way(self):
    for split in ("train", "test"):
      for index in range(100):
        grid = await lake_of(
          FrozenLake(frozen=0.4), Task("frozen_lake", split, index)
        )
        self.assertGreaterEqual(len(shortest_way(grid)), 6)


class SlipsTest(unittest.IsolatedAsyncioTestCase):
  moves = ("right", "down") * 4

  async def _walks(self, environment, seeds, task=TASK):
    return {
      tuple((await places_of(environment, self.moves, seed=seed, task=task))[0])
      for seed in seeds
    }

  async def test_attempts_at_a_task_slip_differently(self):
    environment = FrozenLake(slip=0.5)
    self.assertGreater(len(await self._walks(environment, range(16))), 4)
    self.assertEqual(len(await self._walks(environment, [3, 3])), 1)

  async def test_by_task_all_attempts_slip_alike(self):
    environment = FrozenLake(slip=0.5, chance_by="task")
    self.assertEqual(len(await self._walks(environment, range(16))), 1)

  async def test_tasks_with_one_seed_slip_differently(self):
    """Else tests, which play with seed 0, would have one luck for all."""
    environment = FrozenLake(slip=2 / 3)
    first = collections.Counter()
    for index in range(60):
      task = Task("frozen_lake", "test", index)
      places, _ = await places_of(environment, ["right"], seed=0, task=task)
      first[places[0]] += 1
    # To the right, down, or up against the edge; a third each.
    self.assertEqual(set(first), {(0, 0), (0, 1), (1, 0)})
    self.assertLess(max(first.values()), 35)

  async def test_the_share_of_slips_is_the_option(self):
    slipped = 0
    for seed in range(300):
      places, _ = await places_of(FrozenLake(slip=0.2), ["left"], seed=seed)
      slipped += places[0] != (0, 0)
    # Half of the slips go up, against the edge. Four standard deviations.
    self.assertTrue(10 < slipped < 50, slipped)


class CheatsTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_the_way_is_in_no_message(self):
    """Nothing is said but the lake: no seed, no direction, no number."""
    steps = await play_answers(FrozenLake(), TASK, move("down"))
    intro, _, lake = steps[0].messages[0].content.partition("\n\n")
    self.assertEqual(intro, "Go from P to G. Do not step on O, a hole.")
    for text in (lake, steps[1].messages[0].content):
      self.assertLessEqual(set(text), {*"P_OG", " ", "\n"})
      self.assertEqual(text.count(PLAYER), 1)
      self.assertLessEqual(text.count(GOAL), 1)

  @parameterized.parameters(
    ("north",),
    ("Right",),
    ("right right",),
    (["down", "right"],),
    (2,),
    (None,),
    ("",),
  )
  async def test_an_illegal_direction_costs_a_turn_and_moves_nothing(
    self, direction
  ):
    _, illegal, legal = await play_answers(
      FrozenLake(), TASK, move(direction), move("up")
    )
    self.assertTrue(illegal.messages[0].content.startswith("Error"))
    self.assertIs(illegal.status, Status.RUNNING)
    self.assertEqual(find(read(legal.messages[0].content), PLAYER), (0, 0))

  async def test_several_moves_in_one_answer_are_one(self):
    calls = tuple(
      ToolCall("move", '{"direction": "up"}', f"c{n}") for n in range(3)
    )
    answer = Message("assistant", tool_calls=calls)
    _, step = await play_answers(FrozenLake(), TASK, answer)
    self.assertEqual(
      [m.content for m in step.messages[1:]],
      ["Not played: one call at a time."] * 2,
    )
