"""A small graph, a question about it, and a session to be tested."""

import json
import unittest

from agentrl_jax.data.messages import Message, ToolCall
from environments.knowledgegraph.calls import KnowledgeBase
from environments.knowledgegraph.engines.graph import Graph, Literal
from environments.knowledgegraph.engines.store import MemoryStore
from environments.knowledgegraph.ontology import Ontology
from environments.knowledgegraph.problem import Problem
from environments.knowledgegraph.session import KGSession, Rules

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
PROBLEM = Problem(
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
FAILED = "Error processing tool call: "


class SessionTestCase(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.session = self.make_session()

  def make_session(self, *, upstream_quirks=False, **rules):
    base = KnowledgeBase(
      MemoryStore(GRAPH), ONTOLOGY, upstream_quirks=upstream_quirks
    )
    return KGSession(PROBLEM, base, Rules(**rules))

  async def call(self, name, *values, arguments=None):
    """The reply to one call; values in the order of the parameters."""
    parameters = {
      tool.name: tool.parameters["required"] for tool in self.session.tools
    }
    if arguments is None:
      named = dict(zip(parameters[name], values, strict=True))
      arguments = json.dumps(named)
    answer = Message("assistant", tool_calls=(ToolCall(name, arguments, "c1"),))
    step = await self.session.step(answer)
    (reply,) = step.messages
    self.assertEqual((reply.role, reply.tool_call_id), ("tool", "c1"))
    return reply.content

  async def say(self, text):
    return await self.session.step(Message("assistant", text))
