"""The expert: right without mistakes, wrong in the named way with them."""

import collections
import json
import unittest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph import KnowledgeGraph
from environments.knowledgegraph.expert import MISTAKES
from environments.knowledgegraph.rehearsal import rehearse
from tests.environments.knowledgegraph.data import questions
from tests.environments.knowledgegraph.playing import play

NUM_TASKS = 60


class RecordingExpert:
  """Keeps what the expert says."""

  def __init__(self, expert):
    self._expert = expert
    self.answers = []

  def answer(self, messages):
    self.answers.append(self._expert.answer(messages))
    return self.answers[-1]


async def calls_of(environment, task, **mistakes):
  """Names and arguments of all calls in one attempt, and its last step."""
  expert = RecordingExpert(environment.expert(task, seed=0, mistakes=mistakes))
  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    while step.status is Status.RUNNING:
      step = await session.step(expert.answer(step.messages))
  calls = [
    (call.name, json.loads(call.arguments))
    for answer in expert.answers
    for call in answer.tool_calls
  ]
  return calls, expert.answers[-1].content, step


class ExpertTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.environment = KnowledgeGraph()

  async def success(self, **mistakes):
    done = await rehearse(
      self.environment, num_tasks=NUM_TASKS, mistakes=mistakes
    )
    return {kind: sum(r) / len(r) for kind, r in done.rewards.items()}

  async def test_each_mistake_spoils_what_it_should(self):
    for mistake, spoilt in {
      "wrong_relation": ("hop", "and", "count", "argmax", "argmin"),
      "wrong_attribute": ("argmax", "argmin"),
      "wrong_order": ("argmax", "argmin"),
      "no_intersection": ("and", "count"),
      "stop_early": ("hop", "and", "count", "argmax", "argmin"),
      "wrong_variable": ("and", "count", "argmax", "argmin"),
    }.items():
      success = await self.success(**{mistake: 1.0})
      for kind in spoilt:
        with self.subTest(mistake=mistake, kind=kind):
          self.assertLess(success[kind], 1.0)
    self.assertEqual(
      set((await self.success(skip_relations=1.0)).values()), {1.0}
    )

  async def test_mistakes_come_as_often_as_asked(self):
    ends = collections.Counter()
    for seed in range(200):
      steps = await play(
        self.environment,
        Task("kg", "train", 0),
        seed=seed,
        mistakes={"stop_early": 0.25},
      )
      ends[steps[-1].reward] += 1
    self.assertTrue(30 < ends[0.0] < 70, ends)

  async def test_entities_are_named_as_the_policy_reads_them(self):
    environment = KnowledgeGraph(source=questions("dev"))
    task = Task("kg", "dev", 0)
    names = environment._loaded[0].entities
    calls, answer, step = await calls_of(environment, task)
    subjects = {arguments.get("variable", "") for _, arguments in calls}
    self.assertLessEqual(set(names), subjects)
    self.assertFalse({s for s in subjects if s.startswith("m.")})
    self.assertEqual(answer, "Final Answer: #3")
    self.assertEqual(step.reward, 1.0)

  async def test_every_loaded_task_ends_whatever_the_mistakes(self):
    environment = KnowledgeGraph(source=questions("dev"))
    mistakes = dict.fromkeys(MISTAKES, 0.5)
    for index in environment.indices("dev"):
      for seed in range(3):
        *_, last = await play(
          environment, Task("kg", "dev", index), seed=seed, mistakes=mistakes
        )
        self.assertTrue(last.status.is_policys_doing)

  def test_unknown_mistakes_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "no_count.*knows skip_relations"):
      self.environment.expert(
        Task("kg", "train", 0), seed=0, mistakes={"no_count": 1.0}
      )


class RehearsalTest(unittest.IsolatedAsyncioTestCase):
  async def test_it_counts(self):
    done = await rehearse(
      KnowledgeGraph(kinds=("hop",)),
      num_tasks=5,
      num_attempts=2,
      mistakes={},
    )
    self.assertEqual((done.num_sessions, done.success), (10, 1.0))
    self.assertGreater(done.num_steps, 20)
    self.assertRegex(done.report(), r"hop +100.0% of 10\nall +100.0% of 10\n")


if __name__ == "__main__":
  unittest.main()
