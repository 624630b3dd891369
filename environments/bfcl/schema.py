"""BFCL's descriptions of functions as tools.

Types get their JSON names as BFCL's own adapter for OpenAI's API gives them.
Arguments are not checked against them: BFCL plays what it is given.
"""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.data.messages import Tool

HINT = " Note that the provided function is in Python 3 syntax."
_FLOAT_HINT = " This is a float type value."

_TYPES: Mapping[str, str] = {
  "integer": "integer",
  "number": "number",
  "float": "number",
  "string": "string",
  "boolean": "boolean",
  "bool": "boolean",
  "array": "array",
  "list": "array",
  "tuple": "array",
  "dict": "object",
  "object": "object",
}


def tool_of(doc: Mapping[str, Any], *, hint: str = HINT) -> Tool:
  """The function as a tool; `hint` ends its description."""
  parameters = doc["parameters"]
  return Tool(
    str(doc["name"]),
    str(doc["description"]) + hint,
    {
      "type": "object",
      "properties": _properties(parameters["properties"]),
      "required": list(parameters.get("required", ())),
    },
  )


def _properties(properties: Mapping[str, Any]) -> dict[str, Any]:
  return {name: _schema(rules) for name, rules in properties.items()}


def _schema(rules: Mapping[str, Any]) -> dict[str, Any]:
  schema = dict(rules)
  schema["type"] = _TYPES.get(rules.get("type", "string"), "string")
  if rules.get("type") == "float" and "description" in rules:
    schema["description"] = rules["description"] + _FLOAT_HINT
  if "properties" in rules:
    schema["properties"] = _properties(rules["properties"])
  if "items" in rules:
    schema["items"] = _schema(rules["items"])
  return schema
