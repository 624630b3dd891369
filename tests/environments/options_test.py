"""Wrong options of every environment are refused when it is made."""

import os
from unittest import mock

from absl.testing import parameterized

from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError
from tests.environments.bfcl.packages import require_packages

# By environment, wrong values of single options, which the message names.
REFUSED = {
  "arithmetic.environment:Arithmetic": {
    "max_term": [0],
    "max_turns": [0],
    "num_tasks": [0],
  },
  "alfworld:ALFWorld": {
    "system_prompt": ["long"],
    "max_rounds": [0],
    "task_types": [("pick_and_eat",), "pick_and_place_simple", ()],
    "num_receptacles": [(1, 2)],
    "num_things": [(9, 5)],
    "games": ["no/such/folder"],
  },
  "bfcl:BFCL": {
    "categories": ["base", (), ("composite",)],
    "max_steps": [0],
    "source": ["/no/such/folder"],
  },
  "dbbench:DBBench": {
    "system_prompt": ["long"],
    "engine": ["oracle"],
    "server": ["localhost:3306"],
    "max_rounds": [0],
    "kinds": ["lookup", (), ("lookup", "join")],
    "num_rows": [(1, 2), (3, 8), (8, 4), (8, 1000)],
    "num_columns": [(5, 3), (2, 5)],
    "num_tables": [(0, 1), (3, 2), (1, 5)],
    "source": ["no/such/file.jsonl"],
  },
  "knowledgegraph:KnowledgeGraph": {
    "system_prompt": ["long"],
    "server": ["localhost:3001/sparql"],
    "max_rounds": [0],
    "query_limit_s": [0],
    "num_tasks": [-1],
    "kinds": [("sorting",), "hop"],
    "num_hops": [(0, 1), (2, 4)],
    "num_entities": [(9, 8)],
    "source": ["no/such/file.json"],
    "ontology": ["no/such/folder"],
  },
  "os_interaction:OSInteraction": {
    "system_prompt": ["long"],
    "engine": ["virtualbox"],
    "rootfs": ["/srv/os"],
    "images": [{"fedora": "fedora"}],
    "num_warm": [-1],
    "max_rounds": [0],
    "command_limit_s": [0],
    "memory_mb": [0],
    "cpus": [0],
    "pids": [0],
    "disk_mb": [0],
    "kinds": [("sorting",), "log", ()],
    "difficulty": [(0, 1), (3, 2)],
    "source": ["no/such/file.json"],
  },
  "webshop:WebShop": {
    "system_prompt": ["long"],
    "difficulty": ["harder"],
    "max_rounds": [0],
    "results_per_page": [0],
    "tasks_per_catalogue": [0],
    "catalogue_size": [0],
    "num_cached": [0],
    "num_test": [0],
    "separator": [""],
  },
  "word_problems.environment:WordProblems": {
    "steps": [(0, 1), (3, 2)],
    "largest": [3],
    "operators": [(), ("+", "/")],
    "max_turns": [0],
    "result": ["It is."],
  },
}
TOGETHER = (
  (
    "word_problems.environment:WordProblems",
    {"operators": ("*",), "steps": (1, 2)},
  ),
  ("alfworld:ALFWorld", {"games": ".", "source": "no/such/list.json"}),
  (
    "os_interaction:OSInteraction",
    {"engine": "sandbox", "rootfs": "/no/such/folder"},
  ),
  ("os_interaction:OSInteraction", {"engine": "sandbox", "image": "debian"}),
)


def make(name, options=None):
  return load_environment(f"environments.{name}", options or {})


class OptionsTest(parameterized.TestCase):
  @parameterized.parameters(*REFUSED)
  def test_wrong_options_are_refused(self, name):
    if name == "bfcl:BFCL":
      require_packages()
    for option, values in REFUSED[name].items():
      for value in values:
        with (
          self.subTest(option=option, value=value),
          self.assertRaisesRegex(ConfigError, option),
        ):
          make(name, {option: value})

  @parameterized.parameters(*TOGETHER)
  def test_options_that_contradict_each_other_are_refused(self, name, options):
    with self.assertRaises(ConfigError):
      make(name, options)

  @parameterized.parameters(
    ("alfworld:ALFWorld", "games"),
    ("dbbench:DBBench", "source"),
    ("knowledgegraph:KnowledgeGraph", "source"),
    ("os_interaction:OSInteraction", "source"),
  )
  @mock.patch.dict(os.environ, {"ALFWORLD_DATA": "no/such/folder"})
  def test_dev_needs_files(self, name, option):
    with self.assertRaisesRegex(ConfigError, option):
      make(name).indices("dev")
