"""The gold calls of AgentBench's questions give the gold answer.

Freebase is not available, so each question is played on a synthesised graph
(see `synthesis`). AgentBench's own worker cannot run some of the gold calls on
any facts, because its vocabulary or its rules forbid them. Every failure must
have one of these reasons.
"""

import collections
import unittest

import pytest

from agentrl_jax.data.records import Message, Task
from agentrl_jax.env.scripted import ToolCaller
from environments.knowledgegraph.calls import ENTITY, NUMBER
from environments.knowledgegraph.session import PARAMETERS
from tests.environments.knowledgegraph.data import questions
from tests.environments.knowledgegraph.synthesis import SynthesisedGraphs

STRIDE = 11  # of the questions in tests that are not marked `full`
TOOLS_WITH_RESULT = (
  "get_neighbors",
  "intersection",
  "argmax",
  "argmin",
  "count",
)


async def replay(environment, index):
  """Makes the gold calls unchanged, answers their last result, and stops."""
  problem = environment._loaded["dev"][index]
  async with environment.open(Task("kg", "dev", index), seed=0) as session:
    await session.reset()
    caller = ToolCaller()
    for call in problem.gold_calls:
      named = zip(PARAMETERS[call.name], call.arguments, strict=True)
      await session.step(caller.call(call.name, **dict(named)))
    results = [c for c in problem.gold_calls if c.name in TOOLS_WITH_RESULT]
    answer = f"Final Answer: #{len(results) - 1}"
    return await session.step(Message("assistant", answer))


def reason_against(problem, ontology):
  """Returns why AgentBench forbids the gold calls, or "" if it allows them."""
  types = []
  for call in problem.gold_calls:
    reason = _hop_reason(call, ontology) or _pair_reason(call, types)
    if call.name.startswith("arg") and call.arguments[1] not in (
      ontology.attributes
    ):
      reason = "attribute not in the vocabulary"
    if reason:
      return reason
    if call.name in TOOLS_WITH_RESULT:
      types.append(_type_of(call, types, ontology))
  if problem.answers & set(problem.entities.values()):
    return "the answer is an entity of the question, which no query returns"
  return ""


def _hop_reason(call, ontology):
  if not call.name.startswith("get") or call.arguments[0].startswith("#"):
    return _relation_reason(call, ontology)
  if not ENTITY.fullmatch(call.arguments[0]):
    return "starts from a type, not an entity"
  return _relation_reason(call, ontology)


def _relation_reason(call, ontology):
  if call.name == "get_neighbors" and call.arguments[1] not in (
    ontology.relations
  ):
    return "relation not in the vocabulary"
  return ""


def _pair_reason(call, types):
  if call.name != "intersection":
    return ""
  left, right = (types[int(argument[1:])] for argument in call.arguments)
  return "" if left == right else "types differ in an intersection"


def _type_of(call, types, ontology):
  if call.name == "count":
    return NUMBER
  if call.name == "get_neighbors":
    return ontology.ranges[call.arguments[1]]
  return types[int(call.arguments[0][1:])]


class ConformanceTest(unittest.IsolatedAsyncioTestCase):
  async def outcome(self, name, *, stride=1):
    """Returns numbers of played and right questions, and reasons of others."""
    environment = SynthesisedGraphs(source=questions(name))
    reasons = collections.Counter()
    indices = environment.indices("dev")[::stride]
    for index in indices:
      last = await replay(environment, index)
      problem = environment._loaded["dev"][index]
      reason = reason_against(problem, environment._ontology)
      with self.subTest(name=name, index=index):
        self.assertEqual(last.reward, float(not reason), reason)
      reasons[reason] += 1
    await environment.close()
    return len(indices), reasons.pop(""), reasons

  @pytest.mark.slow
  async def test_dev(self):
    _, num_right, _ = await self.outcome("dev")
    self.assertGreaterEqual(num_right, 18)

  @pytest.mark.slow
  async def test_a_sample_of_train(self):
    num_played, num_right, _ = await self.outcome("train", stride=STRIDE)
    self.assertGreaterEqual(num_right / num_played, 1083 / 1214)

  @pytest.mark.full
  async def test_gold_of_train_is_right(self):
    _, num_right, reasons = await self.outcome("train")
    self.assertGreaterEqual(num_right, 1083, reasons)
