"""Messages name keys of the config, and those keys exist."""

import ast
import dataclasses
import pathlib
import re
from collections.abc import Iterator

import ml_collections
import pytest
from absl.testing import parameterized

from agentrl_jax.model.config import ModelConfig
from configs import base

pytestmark = pytest.mark.smoke

ROOT = pathlib.Path(__file__).parents[2]
# What raises and prints while a run is configured or under way.
FOLDERS = ("agentrl_jax", "launch")
# Names that look like keys: of tensors, files and kinds of OpenAI's objects.
OTHER_NAMES = re.compile(
  r"model\.(layers|norm|embed_tokens|(embed_tokens_)?per_layer|language_model)"
  r"|chat\.completion|tokenizer\.(ggml|chat_template)"  # of GGUF files
  r"|\.(json|jsonl|html|txt|safetensors)$"
)
CONFIG = base.get_config()
# Of a published model's config.json, too, which has more than keys.
ARCHITECTURE = {field.name for field in dataclasses.fields(ModelConfig)}
SECTIONS = tuple(
  name
  for name, value in CONFIG.items()
  if isinstance(value, ml_collections.ConfigDict)
)
# Neither a part of a longer name, nor a module or a function.
KEY = re.compile(
  rf"(?:--config\.|(?<![\w./-]))((?:{'|'.join(SECTIONS)})(?:\.[a-z_]\w*)+)"
  r"(?![\w.]*[:/(])"
)


def messages(source: str) -> Iterator[str]:
  """Every text of a source but its docstrings; a hole in it is a blank."""
  tree = ast.parse(source)
  docstrings = {
    id(node.body[0].value)
    for node in ast.walk(tree)
    if isinstance(
      node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    )
    and node.body
    and isinstance(node.body[0], ast.Expr)
  }
  parts = {
    id(part)
    for node in ast.walk(tree)
    if isinstance(node, ast.JoinedStr)
    for part in node.values
  }
  for node in ast.walk(tree):
    if isinstance(node, ast.JoinedStr):
      yield "".join(
        part.value if isinstance(part, ast.Constant) else " "
        for part in node.values
      )
    elif (
      isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and id(node) not in docstrings | parts
    ):
      yield node.value


def absent_keys(text: str) -> list[str]:
  """The keys that a text names and the config does not have."""
  return [
    name
    for name in KEY.findall(text)
    if not OTHER_NAMES.search(name) and not _exists(name)
  ]


def _exists(name: str) -> bool:
  value = CONFIG
  if name.removeprefix("model.") in ARCHITECTURE:
    return True
  for part in name.split("."):
    if not isinstance(value, ml_collections.ConfigDict):
      return False
    if part not in value:
      return False
    value = value[part]
  return True


class MessagesTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_every_key_that_a_message_names_exists(self):
    named, absent = 0, []
    for folder in FOLDERS:
      for path in sorted((ROOT / folder).rglob("*.py")):
        for text in messages(path.read_text()):
          named += len(KEY.findall(text))
          absent += [(path.name, name, text) for name in absent_keys(text)]
    self.assertEmpty(absent)
    self.assertGreater(named, 100)

  @parameterized.parameters(
    ("lower sampling.max_tokens", ["sampling.max_tokens"]),
    ("set --config.loss.clip=0.1", ["loss.clip"]),
    ("episode.max_tokens=9, warm_start.speed", ["warm_start.speed"]),
    ("as in environments.mine.environment:Mine", []),
    ("model.layers.3 of tokenizer.json", []),
    ("python -m launch.train", []),
    ("queue.order and a queue. There", []),
  )
  def test_the_inspector_sees(self, text, absent):
    self.assertEqual(absent_keys(text), absent)

  def test_the_inspector_reads_what_is_put_together(self):
    source = 'f"lower loss." f"clip_lo={x}"\n"loss.a" "b"'
    self.assertEqual(
      [absent_keys(text) for text in messages(source)],
      [["loss.clip_lo"], ["loss.ab"]],
    )
