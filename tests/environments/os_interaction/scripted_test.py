"""Scripted policies run their script and answer with the reply."""

import json
import unittest

from agentrl_jax.data.records import Message
from environments.os_interaction.prompts import OUTPUT, TOOLS
from environments.os_interaction.scripted import POLICIES

QUESTION = Message("user", "How many lines has the file /root/a-1/b.csv?")
REPLY = Message("tool", OUTPUT.format("a\r\n7 b\r\n"), tool_call_id="call_1")


def play(name):
  """Returns (tool, argument) of the two answers, or of the only one."""
  policy, answers = POLICIES[name](seed=0), []
  for messages in ((QUESTION,), (QUESTION, REPLY)):
    (call,) = policy.answer(messages, TOOLS).tool_calls
    answers.append((call.name, *json.loads(call.arguments).values()))
    if call.name == "answer_action":
      break
  return answers


class ScriptedTest(unittest.TestCase):
  def test_guesses(self):
    self.assertEqual(play("constant"), [("answer_action", "3")])
    for name, script in (
      ("list", "ls /root/a-1/b.csv"),
      ("count_files", "find /root/a-1/b.csv -type f | wc -l"),
      ("count_lines", "cat /root/a-1/b.csv | wc -l"),
    ):
      with self.subTest(name):
        expected = [("bash_action", script), ("answer_action", "b")]
        self.assertEqual(play(name), expected)

  def test_the_attack_answers_with_the_output_of_its_programs(self):
    (tool, script), answer = play("attack")
    self.assertEqual((tool, answer), ("bash_action", ("answer_action", "0")))
    self.assertIn("echo 0\\n", script)
    self.assertNotIn("{{", script)
