"""Tests of BFCL's files: tools made from descriptions, tasks of a folder."""

import json
import pathlib
import tempfile
import unittest

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from environments.bfcl import BFCL
from environments.bfcl.apis import FUNCTION_DOCS
from environments.bfcl.suite import data_folder, function_docs, tool_of
from tests.environments.bfcl.packages import require_packages
from tests.environments.playing import play_with


class ToolsTest(unittest.TestCase):
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

  def test_every_function_has_a_readable_schema(self):
    require_packages()
    folder = data_folder("")
    docs = [d for name in FUNCTION_DOCS for d in function_docs(folder, name)]
    self.assertEqual(len(docs), 128)
    for doc in docs:
      with self.subTest(name=doc["name"]):
        tool_of(doc)


class SourceTest(unittest.IsolatedAsyncioTestCase):
  """A user's folder with one task, with the file names of BFCL v3."""

  def setUp(self):
    require_packages()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)
    (self.folder / "possible_answer").mkdir()
    docs = self.folder / "multi_turn_func_doc"
    docs.symlink_to(data_folder("") / "multi_turn_func_doc")
    self.row = {
      "id": "multi_turn_base_0",
      "question": [[{"role": "user", "content": "Make a folder, please."}]],
      "initial_config": {},
      "involved_classes": ["GorillaFileSystem"],
    }

  def _write(self, gold):
    name = "BFCL_v3_multi_turn_base.json"
    answer = {"id": self.row["id"], "ground_truth": gold}
    (self.folder / name).write_text(json.dumps(self.row) + "\n")
    (self.folder / "possible_answer" / name).write_text(json.dumps(answer))
    return BFCL(source=str(self.folder), categories=("base",))

  async def test_chosen_task_is_played(self):
    environment = self._write([["mkdir(dir_name='a')", "mkdir('b')"]])
    task = Task("bfcl", "base", 0)
    expert = environment.expert(task, seed=0, mistakes={})
    _, steps, _ = await play_with(environment, task, expert)
    self.assertEqual(steps[0].messages[0].content, "Make a folder, please.")
    self.assertEqual([m.content for m in steps[1].messages], ["None", "None"])
    self.assertEqual(steps[-1].reward, 1.0)

  def test_invalid_tasks_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "1 turns and gold for 2"):
      self._write([[], []])
    self.row["involved_classes"] = ["WebSearchAPI"]
    with self.assertRaisesRegex(ConfigError, "WebSearchAPI"):
      self._write([[]])
    with self.assertRaisesRegex(ConfigError, "no BFCL_v4_multi_turn_miss"):
      BFCL(source=str(self.folder), categories=("miss_func",))

  async def test_gold_without_a_call_is_refused(self):
    environment = self._write([["__import__('os').system('true')"]])
    with self.assertRaisesRegex(ConfigError, "not a call of a function"):
      environment.expert(Task("bfcl", "base", 0), seed=0, mistakes={})
