"""Sessions on a small graph: the calls, the end, and AgentBench's refusals.

Replies are checked against the texts of AgentBench's source.
"""

import json
import unittest

from agentrl_jax.data.records import Message, Status, ToolCall
from environments.knowledgegraph.calls import MAX_STEPS, KnowledgeBase
from environments.knowledgegraph.engines.graph import Graph, Literal
from environments.knowledgegraph.engines.memory import MemoryStore
from environments.knowledgegraph.problem import KGProblem, Ontology
from environments.knowledgegraph.session import PARAMETERS, KGSession
from environments.options import KnowledgeGraphOptions

RELATIONS = ("film.director.film", "film.actor.film", "film.film.starring")
RELATIONS += ("film.film.odd",)  # has no range
ONTOLOGY = Ontology(
  ranges={
    "film.director.film": "film.film",
    "film.actor.film": "film.film",
    "film.film.starring": "film.actor",
  },
  relations=frozenset(
    [
      "film.director.film",
      "film.actor.film",
      "film.film.starring",
      "film.film.odd",
    ]
  ),
  attributes=frozenset(["film.film.runtime"]),
)
GRAPH = Graph(
  [
    ("m.0dir", "film.director.film", "m.0f1"),
    ("m.0dir", "film.director.film", "m.0f2"),
    ("m.0dir", "type.object.name", "m.0name"),
    ("m.0act", "film.actor.film", "m.0f2"),
    ("m.0act", "film.actor.film", "m.0f3"),
    ("m.0f1", "film.film.starring", "m.0x"),
    ("m.0f2", "film.film.starring", "m.0act"),
    ("m.0f2", "film.film.odd", "m.0x"),
    ("m.0f1", "film.film.runtime", Literal("90", "integer")),
    ("m.0f2", "film.film.runtime", Literal("101", "integer")),
    ("g.12", "film.director.film", "m.0f3"),
  ]
)
PROBLEM = KGProblem(
  question="which film?",
  entities={"A Director": "m.0dir", "Some Actor": "m.0act"},
  answers=frozenset({"m.0f1", "m.0f2"}),
  gold_calls=(),
  kind="grailqa",
)
FILMS = "Observation: variable #{}, which are instances of film.film"
NO_ENTITY = "{}: variable must be a variable or an entity"
NO_RELATION = "get_neighbors: relation must be a relation of the variable"
NO_ATTRIBUTE = "{}: attribute must be an attribute of the variable"
NOT_ONE = "'{}' object has no attribute '{}'"
NO_CALL = "No valid function calls found! Need to recheck the function calls."
FAILED = "Error processing tool call: "
BAD_ARGUMENTS = (
  "Arguments do not match the function signature. Error processing arguments "
  "for "
)


class SessionTestCase(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.session = self.make_session()

  def make_session(self, *, upstream_quirks=False, **rules):
    base = KnowledgeBase(
      MemoryStore(GRAPH), ONTOLOGY, upstream_quirks=upstream_quirks
    )
    return KGSession(PROBLEM, base, KnowledgeGraphOptions(**rules))

  async def call(self, name, *values, arguments=None):
    """Returns the reply to a call with values in the parameters' order."""
    if arguments is None:
      arguments = json.dumps(dict(zip(PARAMETERS[name], values, strict=True)))
    answer = Message("assistant", tool_calls=(ToolCall(name, arguments, "c1"),))
    step = await self.session.step(answer)
    (reply,) = step.messages
    self.assertEqual((reply.role, reply.tool_call_id), ("tool", "c1"))
    return reply.content

  async def answer(self, text):
    return await self.session.step(Message("assistant", text))


class CallsTest(SessionTestCase):
  async def test_relations_of_an_entity_by_name_or_id(self):
    listed = "film.director.film"
    for entity, relations in (
      ("A Director", listed),
      ("m.0dir", listed),
      ("m.0dir\n", listed),
      ("m.0none", ""),
    ):
      reply = await self.call("get_relations", entity)
      with self.subTest(entity=entity):
        self.assertEqual(reply, f"Observation: [{relations}]")

  async def test_neighbors_without_listing_relations_first(self):
    self.assertEqual(
      await self.call("get_neighbors", "A Director", "film.director.film"),
      FILMS.format(0),
    )
    self.assertEqual(
      await self.call("get_relations", "#0"),
      "Observation: [film.film.odd, film.film.starring]",
    )

  async def test_results_of_each_tool(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    await self.call("get_neighbors", "Some Actor", "film.actor.film")
    for name, values, reply in (
      ("intersection", ("#0", "#1"), FILMS.format(2)),
      ("get_attributes", ("#0",), "Observation: [film.film.runtime]"),
      ("argmax", ("#0", "film.film.runtime"), FILMS.format(3)),
      ("argmin", ("#0", "film.film.runtime"), FILMS.format(4)),
      ("count", ("#4",), "Observation: variable #5, which is a number"),
      ("get_relations", ("#5",), "Observation: []"),
      ("get_relations", ("#-1",), "Observation: []"),
    ):
      with self.subTest(name=name):
        self.assertEqual(await self.call(name, *values), reply)

  async def test_mistakes_get_agentbenchs_messages(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    await self.call("get_neighbors", "#0", "film.film.starring")
    no_program = NOT_ONE.format("str", "program")
    other_types = "intersection: two variables must have the same type"
    neighbors = NO_ENTITY.format("get_neighbors")
    for name, values, error in (
      ("get_relations", ["nobody"], NO_ENTITY.format("get_relations")),
      ("get_neighbors", ["nobody", "film.film.starring"], neighbors),
      ("get_neighbors", ["A Director", "film.film.starring"], NO_RELATION),
      ("get_neighbors", ["A Director", "type.object.name"], NO_RELATION),
      ("get_neighbors", ["#0", "film.film.odd"], "'film.film.odd'"),
      ("get_neighbors", ["A Director", 7], NO_RELATION),
      ("intersection", ["#0", "#1"], other_types),
      ("intersection", ["#0", "m.0dir"], NOT_ONE.format("str", "type")),
      ("intersection", [None, "#0"], NOT_ONE.format("NoneType", "type")),
      ("count", ["A Director"], no_program),
      ("get_attributes", ["m.0dir"], no_program),
      ("argmax", ["m.0dir", "film.film.runtime"], no_program),
      ("argmax", ["#1", "film.film.runtime"], NO_ATTRIBUTE.format("argmax")),
      ("argmin", ["#0", "film.film.starring"], NO_ATTRIBUTE.format("argmin")),
      ("get_relations", ["#2"], "list index out of range"),
      ("get_relations", ["#x"], "invalid literal for int() with base 10: 'x'"),
      ("get_relations", [7], "expected string or bytes-like object"),
      ("get_relations", [["m.0dir"]], "unhashable type: 'list'"),
      ("get_relations", [{}], "unhashable type: 'dict'"),
    ):
      with self.subTest(name=name, values=values):
        self.session._num_rounds = 0
        self.assertEqual(await self.call(name, *values), FAILED + error)

  async def test_arguments_that_are_not_an_object(self):
    for arguments, reply in (
      (
        "{",
        "Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)",
      ),
      ("", "Expecting value: line 1 column 1 (char 0)"),
      ("null", "'NoneType' object is not subscriptable"),
      ("7", "'int' object is not subscriptable"),
      ("[]", "list indices must be integers or slices, not str"),
      ('"x"', "string indices must be integers"),
    ):
      with self.subTest(arguments=arguments):
        self.assertEqual(
          await self.call("count", arguments=arguments), FAILED + reply
        )

  async def test_a_missing_argument(self):
    self.assertEqual(
      await self.call("get_neighbors", arguments='{"variable": "A Director"}'),
      BAD_ARGUMENTS + "get_neighbors",
    )

  async def test_unknown_tools(self):
    self.assertEqual(
      await self.call("search", arguments="{}"),
      "Provide an invalid function name. Function search does not exist",
    )
    for name in ("union", "final_execute", "__init__"):  # AgentBench has them
      self.assertEqual(
        await self.call(name, arguments="{}"), BAD_ARGUMENTS + name
      )

  async def test_all_calls_of_an_answer_are_run(self):
    film = ToolCall(
      "get_neighbors",
      '{"variable": "A Director", "relation": "film.director.film"}',
      "c1",
    )
    count = ToolCall("count", '{"variable": "#0"}', "c2")
    step = await self.session.step(
      Message("assistant", "Final Answer: #0", tool_calls=(film, count))
    )
    self.assertEqual(
      [(m.tool_call_id, m.content) for m in step.messages],
      [
        ("c1", FILMS.format(0)),
        ("c2", "Observation: variable #1, which is a number"),
      ],
    )
    self.assertIs(step.status, Status.RUNNING)

  async def test_programs_of_variables_are_bounded(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    for k in range(12):  # each program is twice as long as the last
      self.session._num_rounds = 0
      reply = await self.call("intersection", f"#{k}", f"#{k}")
      if reply.startswith(FAILED):
        break
    self.assertEqual(
      reply, f"{FAILED}a variable cannot take more than {MAX_STEPS} steps"
    )


class EndTest(SessionTestCase):
  async def test_the_right_variable(self):
    for text in (
      "Final Answer: #0",
      "Find Answer: #0, I think",
      "So it is.\nFinal Answer: #0 Observation: Final Answer: #1",
    ):
      self.session = self.make_session()
      await self.call("get_neighbors", "A Director", "film.director.film")
      step = await self.answer(text)
      with self.subTest(text=text):
        self.assertIs(step.status, Status.COMPLETED)
        self.assertEqual(step.reward, 1.0)
        self.assertEqual(step.messages, ())

  async def test_a_partly_right_answer_has_f1_but_no_reward(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    await self.call("argmax", "#0", "film.film.runtime")
    step = await self.answer("Final Answer: #1")
    self.assertIs(step.status, Status.COMPLETED)
    self.assertEqual(step.reward, 0.0)
    self.assertAlmostEqual(step.metrics["f1"], 2 / 3)
    self.assertEqual(step.metrics["right/grailqa"], 0.0)

  async def test_an_unknown_variable_as_answer(self):
    for text in ("Final Answer: #0", f"Final Answer: #{10**30}"):
      self.session = self.make_session()
      step = await self.answer(text)
      self.assertIs(step.status, Status.AGENT_VALIDATION_FAILED)
      self.assertEqual((step.reward, step.messages), (0.0, ()))

  async def test_neither_call_nor_answer(self):
    for text in (
      "",
      "final answer: #0",
      "Final Answer: A Director",
      "Final Answer: #",
      "Observation: Final Answer: #0",
    ):
      step = await self.answer(text)
      with self.subTest(text=text):
        self.assertIs(step.status, Status.RUNNING)
        self.assertEqual(step.messages, (Message("user", NO_CALL),))

  async def test_the_last_round_is_run(self):
    self.session = self.make_session(max_rounds=2)
    await self.answer("hm")
    call = ToolCall("get_relations", '{"variable": "m.0dir"}', "c1")
    step = await self.session.step(Message("assistant", tool_calls=(call,)))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(
      step.messages[0].content, "Observation: [film.director.film]"
    )


class QuirksTest(SessionTestCase):
  async def test_ids_of_freebases_newer_form(self):
    reply = await self.call("get_relations", "g.12")
    self.assertEqual(reply, "Observation: [film.director.film]")
    self.session = self.make_session(upstream_quirks=True)
    reply = await self.call("get_relations", "g.12")
    self.assertEqual(reply, FAILED + NO_ENTITY.format("get_relations"))

  async def test_programs_that_agentbench_cannot_write_in_sparql(self):
    for quirks, last in (
      (False, Status.COMPLETED),
      (True, Status.AGENT_VALIDATION_FAILED),
    ):
      for calls in (
        [("argmax", "#0", "film.film.runtime"), ("count", "#1")],
        [("argmax", "#0", "film.film.runtime")] * 2
        + [("intersection", "#1", "#2")],
      ):
        self.session = self.make_session(upstream_quirks=quirks)
        await self.call("get_neighbors", "A Director", "film.director.film")
        for name, *values in calls:
          await self.call(name, *values)
        step = await self.answer(f"Final Answer: #{len(calls)}")
        with self.subTest(quirks=quirks, calls=calls):
          self.assertIs(step.status, last)
