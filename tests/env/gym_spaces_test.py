"""Actions of every kind are asked for by a schema, and read from JSON."""

import json
import unittest

import gymnasium
import numpy as np
from gymnasium import spaces

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.gym import GymEnvironment
from agentrl_jax.env.gym_spaces import as_json
from agentrl_jax.errors import ConfigError, EnvironmentFault


def a_call(**arguments):
  call = ToolCall("act", json.dumps(arguments), "c1")
  return Message("assistant", tool_calls=(call,))


class Switchboard(gymnasium.Env):
  """Takes an action of every kind, and breaks where it is told to."""

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
    whole = {"type": "integer"}
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
          "items": {**whole, "minimum": 0, "maximum": 4},
        },
      },
    )
    self.assertEqual(
      parts["level"], {"type": "number", "minimum": -1.0, "maximum": 1.0}
    )
    self.assertEqual(parts["push"]["items"], {"type": "number"})
    self.assertEqual(
      parts["pixels"]["items"], {**whole, "minimum": 0, "maximum": 255}
    )
    self.assertEqual(
      parts["pair"]["properties"]["part_0"],
      {**whole, "minimum": 3, "maximum": 4},
    )

  async def _change(self, **changes):
    environment = self.make_environment()
    async with environment.open(Task("x", "train", 0), seed=0) as session:
      await session.reset()
      return await session.step(a_call(**{**ACTION, **changes}))

  async def test_every_kind_of_action_is_played(self):
    step = await self._change()
    self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))

  async def test_what_is_not_in_the_space_is_answered(self):
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

  async def test_what_breaks_on_a_member_of_the_space_is_a_fault(self):
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


if __name__ == "__main__":
  unittest.main()
