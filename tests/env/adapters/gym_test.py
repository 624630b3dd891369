"""Tests of Gymnasium's environments, wrapped."""

import json
import unittest

import gymnasium
import numpy as np
from gymnasium import spaces

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.adapters.gym import GymEnvironment, as_json
from agentrl_jax.env.adapters.reset_step import NO_TOOLS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault


def a_call(**arguments):
  call = ToolCall("act", json.dumps(arguments), "c1")
  return Message("assistant", tool_calls=(call,))


class Switchboard(gymnasium.Env):
  """Takes an action of every kind, and breaks on request."""

  observation_space = spaces.Dict({"seen": spaces.Text(100)})
  action_space = spaces.Dict(
    {
      "grid": spaces.MultiDiscrete([[2, 5], [3, 3]]),
      "flags": spaces.MultiBinary(2),
      "level": spaces.Box(-1, 1, shape=()),
      "push": spaces.Box(-np.inf, np.inf, shape=(1,)),
      "pixels": spaces.Box(0, 255, shape=(2,), dtype=np.uint8),
      "word": spaces.Text(5, min_length=1, charset="abc"),
      "pair": spaces.Tuple([spaces.Discrete(2, start=3), spaces.Text(3)]),
      "path": spaces.Sequence(spaces.Discrete(4)),
    }
  )

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return {"seen": str(self.np_random.integers(10**9))}, {}

  def step(self, action):
    if action["word"] == "cab":
      raise ValueError("out of order")
    return {"seen": repr(action)[:90]}, 1.0, action["word"] == "abc", False, {}


ACTION = {
  "grid": [[1, 4], [2, 2]],
  "flags": [0, 1],
  "level": 0.5,
  "push": [-3],
  "pixels": [0, 255],
  "word": "abc",
  "pair": {"part_0": 4, "part_1": "xyz"},
  "path": [3, 0],
}


class SpacesTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    gymnasium.register("Switchboard-v0", entry_point=Switchboard)
    self.addCleanup(gymnasium.registry.pop, "Switchboard-v0")

  def make_environment(self):
    return GymEnvironment("Switchboard-v0", max_rounds=40)

  def test_schema(self):
    (tool,) = self.make_environment().tools
    integer = {"type": "integer"}
    parts = tool.parameters["properties"]
    self.assertEqual(set(tool.parameters["required"]), set(ACTION))
    self.assertEqual(
      parts["grid"],
      {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {
          "type": "array",
          "minItems": 2,
          "maxItems": 2,
          "items": {**integer, "minimum": 0, "maximum": 4},
        },
      },
    )
    self.assertEqual(
      parts["level"], {"type": "number", "minimum": -1.0, "maximum": 1.0}
    )
    self.assertEqual(parts["push"]["items"], {"type": "number"})
    self.assertEqual(
      parts["pixels"]["items"], {**integer, "minimum": 0, "maximum": 255}
    )
    self.assertEqual(
      parts["pair"]["properties"]["part_0"],
      {**integer, "minimum": 3, "maximum": 4},
    )

  async def _change(self, **changes):
    environment = self.make_environment()
    async with environment.open(Task("x", "train", 0), seed=0) as session:
      await session.reset()
      return await session.step(a_call(**{**ACTION, **changes}))

  async def test_every_kind_of_action_is_played(self):
    step = await self._change()
    self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))

  async def test_actions_outside_the_space_are_answered(self):
    for name, value in {
      "grid": [[4, 4], [2, 2]],  # as high as some entry may be, not this one
      "flags": [0, 2],
      "level": 1.5,
      "push": [1e300],
      "pixels": [256, 0],
      "word": "xyz",
      "pair": {"part_0": 4, "part_1": "longer"},
      "path": [4],
    }.items():
      step = await self._change(**{name: value})
      with self.subTest(name=name):
        self.assertIs(step.status, Status.RUNNING)
        self.assertTrue(step.messages[0].content.startswith("Error: "))
        self.assertEqual(step.reward, 0.0)

  async def test_errors_on_members_of_the_space_are_faults(self):
    with self.assertRaisesRegex(EnvironmentFault, "ValueError: out of order"):
      await self._change(word="cab")

  def test_a_space_without_a_schema(self):
    class Graphs(Switchboard):
      action_space = spaces.Graph(spaces.Discrete(2), None)

    gymnasium.register("Graphs-v0", entry_point=Graphs)
    self.addCleanup(gymnasium.registry.pop, "Graphs-v0")
    with self.assertRaisesRegex(ConfigError, "override `tools` and `action`"):
      GymEnvironment("Graphs-v0")


class ObservationTest(unittest.TestCase):
  def test_numpy_becomes_json(self):
    observation = {
      "at": np.array([1.23456, -2.0], np.float32),
      "n": np.int64(3),
      "pair": (np.bool_(True), "text"),
    }
    self.assertEqual(
      json.dumps(as_json(observation)),
      '{"at": [1.2346, -2.0], "n": 3, "pair": [true, "text"]}',
    )


TAXI = max(id for id in gymnasium.registry if id.startswith("Taxi-v"))
MOVES = ("left", "down", "right", "up")


class MountainCarTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """Plays actions that are arrays, in a thread of its own."""

  def make_environment(self):
    return GymEnvironment(
      "MountainCarContinuous-v0",
      max_rounds=30,
      reward_range=(-100, 100),
      blocking=True,
    )


class PlayTest(unittest.IsolatedAsyncioTestCase):
  async def test_a_lake_is_crossed(self):
    environment = GymEnvironment(
      "FrozenLake-v1",
      options={"is_slippery": False},
      actions=MOVES,
      instructions="Reach 15 on a lake four wide.",
      split_by="seed",
    )
    task = Task("FrozenLake-v1", "train", 0)
    async with environment.open(task, seed=0) as session:
      first = await session.reset()
      self.assertEqual(
        first.messages, (Message("user", "Reach 15 on a lake four wide.\n\n0"),)
      )
      path = ["down", "down", "right", "right", "down", "right"]
      steps = [await session.step(a_call(action=move)) for move in path]
    self.assertEqual(
      [step.messages[0].content for step in steps],
      ["4", "8", "9", "10", "14", "15"],
    )
    self.assertEqual([step.reward for step in steps], [0, 0, 0, 0, 0, 1])
    self.assertIs(steps[-2].status, Status.RUNNING)
    self.assertIs(steps[-1].status, Status.COMPLETED)
    self.assertEqual(steps[-1].metrics, {"num_actions": 6.0, "return": 1.0})

  async def test_truncation_is_the_limit_or_the_end(self):
    for truncated_is_completed, status in (
      (False, Status.TASK_LIMIT_REACHED),
      (True, Status.COMPLETED),
    ):
      environment = GymEnvironment(
        "CartPole-v1",
        options={"max_episode_steps": 2},
        truncated_is_completed=truncated_is_completed,
      )
      task = Task("CartPole-v1", "train", 0)
      async with environment.open(task, seed=0) as session:
        await session.reset()
        await session.step(a_call(action=0))
        step = await session.step(a_call(action=1))
      self.assertEqual((step.status, step.reward), (status, 2.0))

  async def test_equal_first_observations_need_split_by_seed(self):
    environment = GymEnvironment("FrozenLake-v1")
    with self.assertRaisesRegex(ConfigError, "split_by='seed'"):
      for split in ("train", "test"):
        async with environment.open(Task("x", split, 0), seed=0):
          pass


class LuckyBox(gymnasium.Env):
  """Shows a number that its seed decides about."""

  observation_space = spaces.Text(100)
  action_space = spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return "A box.", {}

  def step(self, action):
    return str(self.np_random.integers(10**9)), 0.0, True, False, {}


class ChanceTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    gymnasium.register("LuckyBox-v0", entry_point=LuckyBox)
    self.addCleanup(gymnasium.registry.pop, "LuckyBox-v0")

  async def _numbers(self, chance_by, *, indices, seeds):
    environment = GymEnvironment(
      "LuckyBox-v0", argument="side", split_by="seed", chance_by=chance_by
    )
    numbers = []
    for index in indices:
      for seed in seeds:
        task = Task("LuckyBox-v0", "train", index)
        async with environment.open(task, seed=seed) as session:
          await session.reset()
          step = await session.step(a_call(side=1))
          numbers.append(step.messages[0].content)
    return numbers

  async def test_by_task_attempts_are_alike(self):
    same = await self._numbers("task", indices=[0], seeds=[0, 1, 2])
    self.assertEqual(len(set(same)), 1)
    others = await self._numbers("task", indices=[0, 1, 2], seeds=[0])
    self.assertEqual(len(set(others)), 3)

  async def test_by_episode_attempts_differ(self):
    seeds = [0, 1, 2, 2**63 - 1]
    numbers = await self._numbers("episode", indices=[0, 1], seeds=seeds)
    self.assertEqual(len(set(numbers)), 8)
    again = await self._numbers("episode", indices=[0, 1], seeds=seeds)
    self.assertEqual(numbers, again)

  def test_the_argument_has_a_name(self):
    environment = GymEnvironment("LuckyBox-v0", argument="side")
    (tool,) = environment.tools
    self.assertEqual(tool.parameters["required"], ["side"])

  def test_other_rules_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "one of task, episode"):
      GymEnvironment("LuckyBox-v0", chance_by="group")


class Speller(gymnasium.Env):
  """Wants to hear a word that its seed decides about."""

  observation_space = spaces.Text(100)
  action_space = spaces.Text(6, min_length=3, charset="abc")

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._word = "".join(self.np_random.choice(list("abc"), 6))
    return f"Spell {self._word}.", {}

  def step(self, action):
    won = action == self._word
    return f"You said {action}.", float(won), won, False, {}


class TextTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """A space of texts is answered in text."""

  def setUp(self):
    gymnasium.register("Speller-v0", entry_point=Speller)
    self.addCleanup(gymnasium.registry.pop, "Speller-v0")

  def make_environment(self, **options):
    return GymEnvironment("Speller-v0", max_rounds=30, **options)

  async def test_the_answer_is_the_action(self):
    environment = self.make_environment()
    async with environment.open(Task("x", "train", 0), seed=0) as session:
      self.assertEqual(session.tools, ())
      first = await session.reset()
      word = first.messages[-1].content[6:12]
      replies = [
        (await session.step(Message("assistant", text))).messages[0]
        for text in ("<think>abc</think>\nabc\n", "xyz", "a" * 1000)
      ]
      last = await session.step(Message("assistant", word))
    self.assertEqual(replies[0], Message("user", "You said abc."))
    for reply in replies[1:]:
      self.assertRegex(reply.content, r"\AError: .{1,210} is not in Text\(3, 6")
    self.assertEqual((last.reward, last.status), (1.0, Status.COMPLETED))

  async def test_a_call_is_answered(self):
    environment = self.make_environment()
    async with environment.open(Task("x", "train", 0), seed=0) as session:
      await session.reset()
      step = await session.step(a_call(action="abc"))
    self.assertEqual(
      step.messages, (Message("tool", NO_TOOLS, tool_call_id="c1"),)
    )

  def test_a_tool_may_be_named(self):
    (tool,) = self.make_environment(tool="say").tools
    self.assertEqual(tool.name, "say")
    for options in ({"argument": "word"}, {"actions": ("a",)}):
      with self.assertRaisesRegex(ConfigError, "is answered in text"):
        self.make_environment(**options)


class RefusedTest(unittest.TestCase):
  def test_unknown_ids_are_refused(self):
    for id, options in {
      "NoSuchGame-v0": {},
      "FrozenLake-v1": {"actions": ("left", "right")},
      "CartPole-v1": {"options": {"no_such_option": 1}},
      TAXI: {"no_such_rule": 1},
      "Blackjack-v1": {"reward_range": (1, -1)},
    }.items():
      with self.subTest(id=id), self.assertRaises(ConfigError):
        GymEnvironment(id, **options)
