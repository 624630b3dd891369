"""Prompts and tools are AgentBench's to the letter, spaces included.

The digests are of THUDM/AgentBench, src/server/tasks/knowledgegraph/const.py:
sha256 of INSTRUCTIONS, and of json.dumps(TOOLS or ONE_SHOT, sort_keys=True).
"""

import hashlib
import json
import unittest

from agentrl_jax.data.records import message_to_json, tool_to_json
from environments.knowledgegraph.prompts import (
  ONE_SHOT,
  SYSTEM_PROMPTS,
  TOOLS,
  opening,
)


def digest(text):
  return hashlib.sha256(text.encode()).hexdigest()


class PromptsTest(unittest.TestCase):
  def test_instructions(self):
    self.assertEqual(
      digest(SYSTEM_PROMPTS["upstream"]),
      "e1ee24471ec118a297a31c9054dc05b02b2979ae5a77ee126ebc338dcae11381",
    )

  def test_tools(self):
    tools = [tool_to_json(tool) for tool in TOOLS]
    self.assertEqual(
      digest(json.dumps(tools, sort_keys=True)),
      "4d66fbe6ba3d2bf77051feb4912e1a183cd038841d1dccba0cd84b0b5701ed73",
    )

  def test_example(self):
    messages = [message_to_json(message) for message in ONE_SHOT]
    self.assertEqual(
      digest(json.dumps(messages, sort_keys=True)),
      "2af29f6df4c906babeab91bcb38a21366fdeca766a4183f5c627c83b73b5d8ab",
    )

  def test_opening(self):
    for one_shot in (False, True):
      system, *example, user = opening(
        "who?",
        ["A", "B, C"],
        system_prompt="upstream",
        max_rounds=7,
        one_shot=one_shot,
      )
      self.assertEqual(user.content, "who?\nEntities: [A, B, C]")
      self.assertIn("a maximum of 7 actions to find", system.content)
      self.assertTrue(system.content.startswith(" \nYou are an intelligent"))
      self.assertEqual(tuple(example), ONE_SHOT if one_shot else ())
