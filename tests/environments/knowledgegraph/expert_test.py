"""The expert solves tasks without mistakes, and fails as its mistakes say."""

import collections
import json
import unittest

from agentrl_jax.data.records import Task
from environments.knowledgegraph import KnowledgeGraph
from tests.environments.knowledgegraph.data import questions
from tests.environments.knowledgegraph.synthesis import SynthesisedGraphs
from tests.environments.playing import play, play_with

NUM_TASKS = 60


class ExpertTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.environment = KnowledgeGraph()

  async def success(self, **mistakes):
    rewards = collections.defaultdict(list)
    for index in self.environment.indices("train")[:NUM_TASKS]:
      task = Task("kg", "train", index)
      *_, last = await play(
        self.environment, task, seed=index, mistakes=mistakes
      )
      kind = next(m for m in last.metrics if m.startswith("right/"))
      rewards[kind.removeprefix("right/")].append(last.reward)
    return {kind: sum(r) / len(r) for kind, r in rewards.items()}

  async def test_each_mistake_costs_success_in_its_kinds(self):
    for mistake, kinds in {
      "wrong_relation": ("hop", "and", "count", "argmax", "argmin"),
      "wrong_attribute": ("argmax", "argmin"),
      "wrong_order": ("argmax", "argmin"),
      "no_intersection": ("and", "count"),
      "stop_early": ("hop", "and", "count", "argmax", "argmin"),
      "wrong_variable": ("and", "count", "argmax", "argmin"),
    }.items():
      success = await self.success(**{mistake: 1.0})
      for kind in kinds:
        with self.subTest(mistake=mistake, kind=kind):
          self.assertLess(success[kind], 1.0)
    self.assertEqual(
      set((await self.success(skip_relations=1.0)).values()), {1.0}
    )

  async def test_entities_are_named_as_the_policy_reads_them(self):
    environment = SynthesisedGraphs(source=questions("dev"))
    task = Task("kg", "dev", 0)
    names = environment._loaded["dev"][0].entities
    expert = environment.expert(task, seed=0, mistakes={})
    _, steps, answers = await play_with(environment, task, expert)
    subjects = {
      json.loads(call.arguments).get("variable", "")
      for answer in answers
      for call in answer.tool_calls
    }
    self.assertLessEqual(set(names), subjects)
    self.assertFalse({s for s in subjects if s.startswith("m.")})
    self.assertEqual(answers[-1].content, "Final Answer: #3")
    self.assertEqual(steps[-1].reward, 1.0)
