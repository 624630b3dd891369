"""Agents whose calls are forced are trained on what they were drawn from."""

import json
import statistics
import unittest

import pytest

from tests.launch.serving.agents_test import TEMPERATURE, Trained
from tests.rollout import talking

TOOLS = [
  {
    "type": "function",
    "function": {
      "name": "paint",
      "strict": True,
      "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue", "black"]}},
        "required": ["colour"],
      },
    },
  }
]


async def painter(client):
  """Is paid for what it paints red; every answer is a call that can be read."""
  said = await client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "Paint it."}],
    tools=TOOLS,
    tool_choice="required",
    parallel_tool_calls=False,
  )
  (call,) = said.choices[0].message.tool_calls
  return float(json.loads(call.function.arguments)["colour"] == "red")


class ForcedAgentsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    rules = dict(temperature=TEMPERATURE, max_answer_tokens=300)
    self.served = await self.enterAsyncContext(
      talking.Talking(rules=rules, slots=(16, 1))
    )
    self.trained = Trained(self.served, painter)

  async def play(self):
    groups = await self.trained.groups()
    rewards = [t.reward for group in groups for t in group.trajectories]
    _, metrics = self.trained.update(groups)
    return statistics.mean(rewards), metrics

  @pytest.mark.slow
  async def test_learner_and_engine_mean_one_distribution(self):
    for _ in range(2):
      _, metrics = await self.play()
      self.assertLess(metrics["policy/engine_drift"], 1e-5)
      self.assertEqual(metrics["policy/on_policy_share"], 1)

  @pytest.mark.full
  async def test_success_rises(self):
    rewards = [(await self.play())[0] for _ in range(15)]
    self.assertLess(rewards[0], 0.6)
    self.assertGreater(statistics.mean(rewards[-3:]), 0.9, rewards)
