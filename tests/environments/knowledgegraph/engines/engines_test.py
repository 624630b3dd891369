"""Memory and SPARQL agree, and failures of endpoints are handled."""

import unittest

import pytest
from hypothesis import given, settings

from agentrl_jax.data.records import Status, Task
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.knowledgegraph import KnowledgeGraph
from environments.knowledgegraph.engines import sparql
from environments.knowledgegraph.engines.endpoint import (
  PAGE_ROWS,
  EndpointEngine,
)
from environments.knowledgegraph.engines.graph import Graph, Literal
from environments.knowledgegraph.engines.memory import ProgramEvaluation
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
)
from environments.knowledgegraph.engines.store import QueryRefused
from environments.knowledgegraph.expert import MISTAKES
from environments.knowledgegraph.generation.generator import TASKS_PER_WORLD
from tests.environments.knowledgegraph.data import questions
from tests.environments.knowledgegraph.engines import random_programs
from tests.environments.knowledgegraph.engines.sparql_server import (
  Endpoint,
  select,
  serving,
)
from tests.environments.knowledgegraph.synthesis import SynthesisedGraphs
from tests.environments.playing import play


class AgreementTest(unittest.TestCase):
  @pytest.mark.slow
  @settings(max_examples=300, deadline=None, derandomize=True)
  @given(graph=random_programs.graphs(), program=random_programs.programs())
  def test_on_answers(self, graph, program):
    answers = select(graph, sparql.answers_query(program))
    self.assertEqual(ProgramEvaluation(graph).answers(program), answers)

  @pytest.mark.slow
  @settings(max_examples=200, deadline=None, derandomize=True)
  @given(
    graph=random_programs.graphs(),
    program=random_programs.sets() | random_programs.entities(),
  )
  def test_on_relations(self, graph, program):
    names = select(graph, sparql.predicates_query(program))
    self.assertEqual(ProgramEvaluation(graph).predicates(program), names)

  def test_long_paths_do_not_multiply_rows(self):
    ids = [f"m.{i}" for i in range(30)]
    graph = Graph((x, "a.b.to", y) for x in ids for y in ids)
    program = Entity("m.0")
    for _ in range(9):  # 30 ** 9 paths
      program = Join("a.b.to", program)
    both = And(And(program, program), And(program, program))
    self.assertEqual(select(graph, sparql.answers_query(both)), {*ids[1:]})


class SameSessionsTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_episodes_in_generated_worlds_are_equal(self):
    mistakes = dict.fromkeys(MISTAKES, 0.4)
    memory = KnowledgeGraph()
    for index in range(0, 6 * TASKS_PER_WORLD, TASKS_PER_WORLD):
      world = memory.find(Task("kg", "train", index)).graph
      async with serving(Endpoint(world)) as url:
        endpoint = KnowledgeGraph()
        endpoint._engine = EndpointEngine(url, query_limit_s=30.0)
        for task in (Task("kg", "train", index + i) for i in range(4)):
          steps, others = [
            await play(environment, task, seed=1, mistakes=mistakes)
            for environment in (memory, endpoint)
          ]
          with self.subTest(task=task):
            self.assertEqual(others, steps)
        await endpoint._engine.close()


class EndpointTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    members = [f"m.{i:05}" for i in range(2 * PAGE_ROWS + 7)]
    facts = [("m.0a", "a.b.to", x) for x in members]
    facts += [(x, "a.b.from", "m.0b") for x in members[:3]]
    facts += [(x, "a.b.size", Literal("7", "integer")) for x in members[:2]]
    self.endpoint = Endpoint(Graph(facts), max_rows=PAGE_ROWS)
    self.many = Join("a.b.to", Entity("m.0a"))
    context = serving(self.endpoint)
    self.url = await self.enterAsyncContext(context)

  async def store(self, *, query_limit_s=10.0, url=""):
    engine = EndpointEngine(url or self.url, query_limit_s=query_limit_s)
    self.addAsyncCleanup(engine.close)
    return await engine.store(Graph())

  async def test_short_results_take_one_query(self):
    store = await self.store()
    answers = await store.answers(Extreme(self.many, "a.b.size", True))
    self.assertEqual(answers, {"m.00000", "m.00001"})
    self.assertEqual(self.endpoint.num_queries, 1)

  async def test_results_that_the_server_truncates_are_read_in_pages(self):
    store = await self.store()
    self.assertEqual(len(await store.answers(self.many)), 2 * PAGE_ROWS + 7)
    self.assertEqual(self.endpoint.num_queries, 1 + 3)

  async def test_counts_and_relations(self):
    store = await self.store()
    number = await store.answers(Count(self.many))
    self.assertEqual(number, {str(2 * PAGE_ROWS + 7)})
    names = await store.predicates(self.many)
    self.assertEqual(names, {"a.b.from", "a.b.size"})

  async def test_a_rejected_query_is_the_policys_error(self):
    store = await self.store()
    for status, message in {
      400: "QueryBadFormed: A bad request has been sent to the endpoint: "
      "probably the SPARQL query is badly formed. \n\nResponse:\n"
      "b'no, thank you'",
      500: "EndPointInternalError: The endpoint returned the HTTP status code "
      "500. \n\nResponse:\nb'no, thank you'",
    }.items():
      self.endpoint.status = status
      with self.subTest(status=status):
        with self.assertRaises(QueryRefused) as caught:
          await store.answers(self.many)
        self.assertEqual(str(caught.exception), message)

  async def test_a_slow_query_is_the_policys_error(self):
    self.endpoint.delay_s = 30.0
    store = await self.store(query_limit_s=0.1)
    with self.assertRaisesRegex(QueryRefused, "within 0.1 seconds"):
      await store.answers(self.many)

  async def test_a_broken_endpoint_is_a_fault(self):
    store = await self.store()
    for status, body in ((503, None), (404, None), (200, "<html>"), (200, "7")):
      self.endpoint.status, self.endpoint.body = status, body
      with (
        self.subTest(status=status, body=body),
        self.assertRaisesRegex(EnvironmentFault, "the SPARQL endpoint"),
      ):
        await store.answers(self.many)

  async def test_an_unreachable_endpoint_is_a_fault(self):
    store = await self.store(url="http://127.0.0.1:9/sparql")
    with self.assertRaisesRegex(EnvironmentFault, "cannot be reached"):
      await store.answers(self.many)


class EndpointSessionTest(unittest.IsolatedAsyncioTestCase):
  async def test_expert_solves_loaded_tasks_on_the_endpoints_facts(self):
    source = questions("dev")
    memory = SynthesisedGraphs(source=source)
    facts = {
      f for i in range(10) for f in memory.find(Task("kg", "dev", i)).graph
    }
    async with serving(Endpoint(Graph(facts))) as url:
      endpoint = KnowledgeGraph(source=source, server=url)
      rewards = []
      for index in range(10):
        *_, last = await play(endpoint, Task("kg", "dev", index))
        rewards.append(last.reward)
      await endpoint.close()
    self.assertGreaterEqual(sum(rewards), 8.0)

  async def test_a_rejected_query_is_an_error_reply_and_fails_the_answer(self):
    endpoint = Endpoint(Graph())
    async with serving(endpoint) as url:
      environment = KnowledgeGraph(source=questions("dev"), server=url)
      endpoint.status = 500
      *_, last = steps = await play(environment, Task("kg", "dev", 0))
      await environment.close()
    self.assertRegex(
      steps[1].messages[0].content,
      r"\AError processing tool call: EndPointInternalError: ",
    )
    self.assertIs(last.status, Status.AGENT_VALIDATION_FAILED)

  def test_endpoints_do_not_have_generated_worlds(self):
    environment = KnowledgeGraph(server="http://localhost")
    for split in ("train", "test", "dev"):
      with self.assertRaisesRegex(ConfigError, "with `server` there are no"):
        environment.indices(split)
