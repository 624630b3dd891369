"""Tests of scripted policies, which make only allowed calls."""

import asyncio
import json
import unittest
from unittest import mock

from agentrl_jax.controller.player import BaselinePlayer
from agentrl_jax.data.records import EpisodeSpec, Message, Task, Tool
from agentrl_jax.env.scripted import GENERIC, Constant, Echo
from agentrl_jax.env.tools import read_arguments
from agentrl_jax.errors import ConfigError
from environments.alfworld import ALFWorld
from environments.arithmetic.environment import Arithmetic
from environments.dbbench import DBBench
from environments.knowledgegraph import KnowledgeGraph
from environments.webshop import WebShop
from tests.settings import WAITS

PROPERTIES = {
  "text": {"type": "string"},
  "mode": {"type": "string", "enum": ["fast", "slow"]},
  "name": {"type": "string"},
  "tool": {"type": "string"},
  "count": {"type": "integer", "minimum": 2, "maximum": 5},
  "share": {"type": "number"},
  "sure": {"type": "boolean"},
  "names": {"type": "array", "items": {"type": "string"}, "minItems": 2},
  "place": {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
  },
}
SCHEMA = {
  "type": "object",
  "properties": PROPERTIES,
  "required": list(PROPERTIES),
  "additionalProperties": False,
}
TOOLS = (Tool("look", "", {"type": "object"}), Tool("tell", "", SCHEMA))
SAID = (Message("system", "Be quick."), Message("user", "Find 12 red shoes!"))


class GenericTest(unittest.TestCase):
  def test_every_call_is_allowed(self):
    for name, make in GENERIC.items():
      for seed in range(50):
        with self.subTest(policy=name, seed=seed):
          (call,) = make(seed=seed).answer(SAID, TOOLS).tool_calls
          self.assertIsInstance(read_arguments(call, TOOLS), dict)

  def test_schemas_of_others_are_filled_in_somehow(self):
    odd = {
      "yes": True,
      "no": False,
      "null": None,
      "any": {},
      "items": {"type": "array", "items": False},
      "list": {"type": "array", "items": [{"type": "string"}]},
      "types": {"type": ["null", "string"]},
      "none": {"type": []},
      "kind": {"type": {}},
      "choices": {"enum": []},
      "choice": {"enum": 5},
      "inner": {"type": "object", "properties": ["a"], "required": True},
      "named": {"type": "object", "required": ["a"]},
      "reference": {"$ref": "#/$defs/a"},
      "long": {"type": "array", "minItems": 10**12},
    }
    tool = Tool("f", "", {"properties": odd, "required": [*odd, "unknown"]})
    for make in GENERIC.values():
      for seed in range(5):
        (call,) = make(seed=seed).answer(SAID, [tool]).tool_calls
        self.assertEqual({*json.loads(call.arguments)}, {*odd, "unknown"})

  def test_answers_are_text_where_there_are_no_tools(self):
    said = {n: make(seed=0).answer(SAID, ()) for n, make in GENERIC.items()}
    self.assertEqual({m.tool_calls for m in said.values()}, {()})
    self.assertEqual(said["echo"].content, "Find 12 red shoes!")
    words = " ".join(m.content for m in SAID)
    self.assertIn(said["random"].content, words)

  def test_the_same_seed_gives_the_same_calls(self):
    for make in GENERIC.values():
      answers = [make(seed=3).answer(SAID, TOOLS) for _ in range(2)]
      self.assertEqual(*answers)

  def test_an_echo_repeats_the_user(self):
    (call,) = Echo(seed=0).answer(SAID, TOOLS).tool_calls
    arguments = json.loads(call.arguments)
    self.assertEqual(arguments["text"], "Find 12 red shoes!")
    self.assertEqual(arguments["mode"], "fast")

  def test_a_constant_call_uses_the_named_tool(self):
    policy = Constant(seed=0, tool="look", arguments={"at": 1})
    (call,) = policy.answer(SAID, TOOLS).tool_calls
    self.assertEqual((call.name, call.arguments), ("look", '{"at": 1}'))


class ScriptedPlayerTest(unittest.TestCase):
  def play(self, policy):
    player = BaselinePlayer(
      environments={"sums": Arithmetic()},
      max_turns=5,
      policy=policy,
      waits=WAITS,
    )
    attempt = EpisodeSpec(
      task=Task("sums", "test", 0), group_id="g", attempt=0, seed=0
    )
    return asyncio.run(player.play(attempt))

  def test_plays_by_the_messages(self):
    self.assertEqual(self.play("copy_numbers").reward, 1.0)
    self.assertEqual(self.play("first_term").reward, 0.0)

  def test_none_plays_the_environments_own_baseline(self):
    for name, reward in (("copy_numbers", 1.0), ("first_term", 0.0)):
      with mock.patch.object(Arithmetic, "baseline", name):
        self.assertEqual(self.play(None).reward, reward)
    with (
      mock.patch.object(Arithmetic, "baseline", ""),
      self.assertRaisesRegex(ConfigError, "no scripted policy ''; it has"),
    ):
      self.play(None)

  def test_a_baseline_is_one_of_the_policies(self):
    for environment in (ALFWorld, Arithmetic, DBBench, KnowledgeGraph, WebShop):
      with self.subTest(environment=environment.name):
        self.assertIn(environment.baseline, ("", *environment.policies))

  def test_an_unknown_policy_is_refused_by_name(self):
    with self.assertRaisesRegex(ConfigError, "'genius'; it has constant"):
      self.play("genius")
