"""What a policy may write as arguments, and what it is told otherwise."""

import json
import unittest

from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.data.messages import Tool, ToolCall
from agentrl_jax.env.tools import (
  Flaw,
  ToolMistake,
  read_arguments,
  require_readable,
)
from agentrl_jax.errors import ConfigError


def an_object(properties, **rules):
  return {"type": "object", "properties": properties, **rules}


SQL = Tool(
  "execute_sql",
  "Runs SQL.",
  an_object(
    {"query": {"type": "string", "description": "What to run."}},
    required=["query"],
    additionalProperties=False,
  ),
)
COMMIT = Tool(
  "commit",
  "Ends.",
  an_object(
    {
      "answers": {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
      },
      "count": {"type": "integer", "minimum": 0, "maximum": 9},
      "how": {"enum": ["fast", "slow"]},
      "where": an_object({"x": {"type": ["number", "null"]}}),
    },
    required=["answers"],
  ),
)
TOOLS = (SQL, COMMIT)


def read(name, arguments):
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments)
  return read_arguments(ToolCall(name, arguments), TOOLS)


class ReadArgumentsTest(unittest.TestCase):
  def test_good_calls_are_read(self):
    for name, arguments in (
      ("execute_sql", {"query": "SELECT 1"}),
      ("execute_sql", {"query": "\x00 € \U0001f600"}),
      ("commit", {"answers": ["a"], "count": 9, "how": "fast"}),
      ("commit", {"answers": ["a"], "where": {"x": None}, "more": 1}),
      ("commit", {"answers": ["a"], "where": {"x": 2.5}, "count": 3.0}),
    ):
      with self.subTest(arguments=arguments):
        self.assertEqual(read(name, arguments), arguments)

  def test_mistakes_say_what_was_found_and_what_is_allowed(self):
    usage = "Usage: execute_sql(query: string)."
    for name, arguments, flaw, words in (
      ("drop", "{}", Flaw.UNKNOWN_TOOL, "The tools are: execute_sql, commit."),
      ("execute_sql", "", Flaw.MALFORMED_JSON, usage),
      ("execute_sql", '{"query": NaN}', Flaw.MALFORMED_JSON, "NaN"),
      ("execute_sql", "[" * 100_000, Flaw.MALFORMED_JSON, usage),
      ("execute_sql", '{"query": "\\ud800"}', Flaw.MALFORMED_JSON, usage),
      ("commit", '{"count": 1e999}', Flaw.MALFORMED_JSON, "64 bits"),
      ("commit", f'{{"count": {"9" * 5000}}}', Flaw.MALFORMED_JSON, "64 bits"),
      ("execute_sql", "[]", Flaw.WRONG_ARGUMENTS, "object, not array"),
      ("execute_sql", "{}", Flaw.WRONG_ARGUMENTS, "`query` is missing"),
      (
        "execute_sql",
        {"query": 1},
        Flaw.WRONG_ARGUMENTS,
        "`query` must be of type string, not integer",
      ),
      (
        "execute_sql",
        {"query": "", "limit": 1},
        Flaw.WRONG_ARGUMENTS,
        'there is no argument "limit"',
      ),
      ("commit", {"answers": []}, Flaw.WRONG_ARGUMENTS, "1 items or more"),
      (
        "commit",
        {"answers": ["a", True]},
        Flaw.WRONG_ARGUMENTS,
        "`answers[1]` must be of type string, not boolean",
      ),
      (
        "commit",
        {"answers": ["a"], "count": True},
        Flaw.WRONG_ARGUMENTS,
        "`count` must be of type integer, not boolean",
      ),
      (
        "commit",
        {"answers": ["a"], "count": -1},
        Flaw.WRONG_ARGUMENTS,
        "at le",
      ),
      (
        "commit",
        {"answers": ["a"], "count": 10},
        Flaw.WRONG_ARGUMENTS,
        "at mo",
      ),
      (
        "commit",
        {"answers": ["a"], "how": "so"},
        Flaw.WRONG_ARGUMENTS,
        '`how` must be one of "fast", "slow", not "so"',
      ),
      (
        "commit",
        {"answers": ["a"], "where": {"x": "here"}},
        Flaw.WRONG_ARGUMENTS,
        "`where.x` must be of type number or null, not string",
      ),
    ):
      with self.subTest(name=name, arguments=str(arguments)[:60]):
        mistake = read(name, arguments)
        self.assertIsInstance(mistake, ToolMistake)
        self.assertIs(mistake.flaw, flaw)
        self.assertIn(words, mistake.message)

  def test_message_does_not_echo_a_huge_answer(self):
    for call in (
      ToolCall("x" * 100_000, "{}"),
      ToolCall("commit", json.dumps({"answers": ["a"], "how": "x" * 100_000})),
      ToolCall("execute_sql", json.dumps({"query": "", "x" * 100_000: 1})),
    ):
      self.assertLess(len(read_arguments(call, TOOLS).message), 400)

  @given(st.text())
  def test_any_text_is_read_or_answered(self, text):
    self.assertIsInstance(read("execute_sql", text), ToolMistake | dict)

  @given(st.dictionaries(st.text(), st.text()), st.text())
  def test_only_the_right_keys_pass(self, others, query):
    arguments = {**others, "query": query}
    found = read("execute_sql", arguments)
    if set(arguments) == {"query"}:
      self.assertEqual(found, arguments)
    else:
      self.assertIs(found.flaw, Flaw.WRONG_ARGUMENTS)


class RequireReadableTest(unittest.TestCase):
  def test_ours_are(self):
    require_readable(TOOLS)

  def test_what_is_not_checked_is_refused(self):
    for rules in (
      {"type": "string", "pattern": "a+"},
      {"type": "strnig"},
      {"type": "array", "items": {"oneOf": []}},
      {"type": "object", "additionalProperties": {"format": "date"}},
    ):
      with self.subTest(rules=rules), self.assertRaises(ConfigError):
        require_readable([Tool("t", "", an_object({"a": rules}))])

  def test_two_tools_of_one_name_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "one name"):
      require_readable((SQL, SQL))


if __name__ == "__main__":
  unittest.main()
