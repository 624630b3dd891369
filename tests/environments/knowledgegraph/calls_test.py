"""The seven calls and their arguments, in the words of AgentBench's source."""

import unittest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status
from environments.knowledgegraph.calls import MAX_STEPS
from tests.environments.knowledgegraph.session_case import (
  FAILED,
  FILMS,
  NO_ATTRIBUTE,
  NO_ENTITY,
  NO_RELATION,
  NOT_ONE,
  SessionTestCase,
)


class CallsTest(SessionTestCase):
  async def test_relations_of_an_entity_by_name_or_id(self):
    for entity in ("A Director", "m.0dir", "m.0dir\n"):
      self.assertEqual(
        await self.call("get_relations", entity),
        "Observation: [film.director.film]",
      )

  async def test_what_has_none(self):
    self.assertEqual(
      await self.call("get_relations", "m.0none"), "Observation: []"
    )

  async def test_neighbors_need_no_look_first(self):
    self.assertEqual(
      await self.call("get_neighbors", "A Director", "film.director.film"),
      FILMS.format(0),
    )
    self.assertEqual(
      await self.call("get_relations", "#0"),
      "Observation: [film.film.odd, film.film.starring]",
    )

  async def test_every_kind_of_result(self):
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

  async def test_mistakes_in_agentbenchs_words(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    await self.call("get_neighbors", "#0", "film.film.starring")
    for name, values, error in (
      ("get_relations", ["nobody"], NO_ENTITY.format("get_relations")),
      (
        "get_neighbors",
        ["nobody", "film.film.starring"],
        NO_ENTITY.format("get_neighbors"),
      ),
      ("get_neighbors", ["A Director", "film.film.starring"], NO_RELATION),
      ("get_neighbors", ["A Director", "type.object.name"], NO_RELATION),
      ("get_neighbors", ["#0", "film.film.odd"], "'film.film.odd'"),
      ("get_neighbors", ["A Director", 7], NO_RELATION),
      (
        "intersection",
        ["#0", "#1"],
        "intersection: two variables must have the same type",
      ),
      ("intersection", ["#0", "m.0dir"], NOT_ONE.format("str", "type")),
      ("intersection", [None, "#0"], NOT_ONE.format("NoneType", "type")),
      ("count", ["A Director"], NOT_ONE.format("str", "program")),
      ("get_attributes", ["m.0dir"], NOT_ONE.format("str", "program")),
      (
        "argmax",
        ["m.0dir", "film.film.runtime"],
        NOT_ONE.format("str", "program"),
      ),
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

  async def test_arguments_that_are_no_object(self):
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
        found = await self.call("count", arguments=arguments)
        self.assertEqual(found, FAILED + reply)

  async def test_a_missing_argument(self):
    self.assertEqual(
      await self.call("get_neighbors", arguments='{"variable": "A Director"}'),
      "Arguments do not match the function signature. Error processing "
      "arguments for get_neighbors",
    )

  async def test_wrong_names(self):
    self.assertEqual(
      await self.call("search", arguments="{}"),
      "Provide an invalid function name. Function search does not exist",
    )
    for name in ("union", "final_execute", "__init__"):  # of AgentBench's own
      self.assertEqual(
        await self.call(name, arguments="{}"),
        "Arguments do not match the function signature. Error processing "
        f"arguments for {name}",
      )

  async def test_all_calls_of_an_answer_are_played(self):
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

  async def test_variables_do_not_grow_without_end(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    for k in range(12):  # each one twice as long as the last
      self.session._num_rounds = 0
      reply = await self.call("intersection", f"#{k}", f"#{k}")
      if reply.startswith(FAILED):
        break
    self.assertEqual(
      reply, f"{FAILED}a variable cannot take more than {MAX_STEPS} steps"
    )


if __name__ == "__main__":
  unittest.main()
