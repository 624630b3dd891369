"""Tests of `data.tool_calls`: the flaw of a call, of any policy and schema."""

from absl.testing import parameterized

from agentrl_jax.data.records import Tool, ToolCall
from agentrl_jax.data.tool_calls import Flaw, flaw_of

SQL = {
  "type": "object",
  "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
  "required": ["query"],
}
LOOP = {
  "properties": {"x": {"$ref": "#/$defs/x"}},
  "$defs": {
    "x": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/x"}] * 9}}
  },
}
TOOLS = (
  Tool("sql", "", SQL),
  Tool("odd", "", {"$ref": "http://elsewhere"}),
  Tool("loop", "", LOOP),
)
BROKEN, WRONG = Flaw.MALFORMED_JSON, Flaw.WRONG_ARGUMENTS


class FlawOfTest(parameterized.TestCase):
  @parameterized.parameters(
    ("sql", '{"query": "x", "limit": 3}', None),
    ("sql", '{"limit": 3}', WRONG),
    ("sql", '["query"]', WRONG),
    ("sql", '{"query": "x"', BROKEN),
    ("sql", '{"query": "x", "query": "y"}', BROKEN),
    ("sql", '{"query": NaN}', BROKEN),
    ("sql", "[" * 100_000, BROKEN),
    ("", '{"query": "x"}', BROKEN),
    ("SQL", '{"query": "x"}', Flaw.UNKNOWN_TOOL),
    # A schema that cannot be checked refuses nothing.
    ("odd", '{"query": "x"}', None),
    ("odd", "{", BROKEN),
    # It takes long to check.
    ("loop", '{"x": ' + "[" * 30 + "1" + "]" * 30 + "}", WRONG),
  )
  def test_of_a_call(self, name, arguments, flaw):
    self.assertIs(flaw_of(ToolCall(name, arguments), TOOLS), flaw)
