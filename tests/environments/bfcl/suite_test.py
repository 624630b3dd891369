"""Descriptions of functions become tools that our checker understands."""

import unittest

from agentrl_jax.env.tools import require_readable
from environments.bfcl.apis import FUNCTION_DOCS
from environments.bfcl.schema import tool_of
from environments.bfcl.suite import data_folder, function_docs
from tests.environments.bfcl.packages import require_packages


class SchemaTest(unittest.TestCase):
  def test_types_get_their_json_names(self):
    tool = tool_of(
      {
        "name": "f",
        "description": "Does it.",
        "parameters": {
          "type": "dict",
          "properties": {
            "x": {"type": "float", "description": "A number.", "default": 1.5},
            "y": {"type": "tuple", "items": {"type": "dict"}},
            "z": {"type": "any"},
            "w": {"type": "dict", "properties": {"v": {"type": "float"}}},
          },
          "required": ["x"],
        },
        "response": {"type": "dict"},
      }
    )
    self.assertEqual(
      tool.description,
      "Does it. Note that the provided function is in Python 3 syntax.",
    )
    self.assertEqual(
      tool.parameters,
      {
        "type": "object",
        "properties": {
          "x": {
            "type": "number",
            "description": "A number. This is a float type value.",
            "default": 1.5,
          },
          "y": {"type": "array", "items": {"type": "object"}},
          "z": {"type": "string"},
          "w": {"type": "object", "properties": {"v": {"type": "number"}}},
        },
        "required": ["x"],
      },
    )

  def test_every_function_is_readable(self):
    require_packages()
    folder = data_folder("")
    docs = [d for name in FUNCTION_DOCS for d in function_docs(folder, name)]
    self.assertEqual(len(docs), 128)
    for doc in docs:
      with self.subTest(name=doc["name"]):
        require_readable([tool_of(doc)])


if __name__ == "__main__":
  unittest.main()
