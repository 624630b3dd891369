"""The expert plays the gold script, and makes each of its mistakes."""

import json
import subprocess
import unittest

from agentrl_jax.data.records import Message
from environments.options import OSInteractionOptions
from environments.os_interaction.expert import (
  MISTAKES,
  as_one_line,
  expert_for_generated,
  expert_for_loaded,
)
from environments.os_interaction.prompts import NO_CALL, OUTPUT
from environments.os_interaction.tasks.generator import TaskGenerator
from environments.os_interaction.tasks.problem import (
  AnswerMatch,
  OSProblem,
  Script,
)

QUESTION = TaskGenerator(OSInteractionOptions(kinds=("log",))).generate(
  "train", 0
)
CHORE = TaskGenerator(OSInteractionOptions(kinds=("edit",))).generate(
  "train", 0
)
ANSWER = ("answer_action", "41")
FINISH = ("finish_action", "The work is done.")
REPLY = (Message("tool", OUTPUT.format("41\r\n"), tool_call_id="call_1"),)


def play(task, *mistakes):
  """Returns (tool, argument) of each of the expert's answers."""
  expert = expert_for_generated(
    task, seed=0, mistakes=dict.fromkeys(mistakes, 1.0)
  )
  answers = []
  while not answers or answers[-1][0] in ("", "bash_action"):
    message = expert.answer(REPLY)
    calls = [
      (call.name, *json.loads(call.arguments).values())
      for call in message.tool_calls
    ]
    answers += calls or [("", message.content)]
  return answers


class ExpertTest(unittest.TestCase):
  def test_without_mistakes(self):
    for task, end in ((QUESTION, ANSWER), (CHORE, FINISH)):
      gold = "bash_action", task.problem.example.code
      self.assertEqual(play(task), [gold, end])

  def test_each_mistake(self):
    gold = "bash_action", QUESTION.problem.example.code
    for mistake, expected in {
      "slip": [("bash_action", QUESTION.slip), ANSWER],
      "no_look": [ANSWER],
      "sentence": [gold, ("answer_action", "The answer is 41.")],
      "off_by_one": [gold, ("answer_action", "42")],
      "finish": [gold, FINISH],
      "no_call": [("", "First I look at the machine."), gold, ANSWER],
    }.items():
      with self.subTest(mistake=mistake):
        self.assertEqual(play(QUESTION, mistake), expected)
        self.assertIn(mistake, MISTAKES)

  def test_a_match_is_answered_with_its_value(self):
    problem = OSProblem("What?", match=AnswerMatch("log"))
    expert = expert_for_loaded(problem, seed=0, mistakes={})
    (call,) = expert.answer((Message("user", "What?"),)).tool_calls
    self.assertEqual(
      (call.name, json.loads(call.arguments)),
      ("answer_action", {"answer": "log"}),
    )

  def test_a_reply_without_output_is_answered_with_a_guess(self):
    expert = expert_for_generated(QUESTION, seed=0, mistakes={})
    expert.answer(REPLY)
    (call,) = expert.answer((Message("user", NO_CALL),)).tool_calls
    self.assertEqual(json.loads(call.arguments), {"answer": "0"})


class OneLineTest(unittest.TestCase):
  def test_plain_lines_stay_unchanged(self):
    script = Script("bash", "ls | wc -l")
    self.assertEqual(as_one_line(script), "ls | wc -l")

  def test_other_scripts_have_the_same_output_on_one_line(self):
    for script in (
      Script("bash", "a=1\nb='x\\n!'\n\techo \"$a $b\" 'é'"),
      Script("bash", "echo hi!"),
      Script("bash", "echo " + "x" * 2000),
      Script("python", "print('é\\n', \"'\")\nprint(2)"),
    ):
      with self.subTest(script=script):
        line = as_one_line(script)
        self.assertTrue(line.isprintable() and line.isascii(), line)
        program = {"bash": "bash", "python": "python3"}[script.language]
        expected = subprocess.run(
          [program, "-c", script.code], capture_output=True, check=True
        )
        done = subprocess.run(
          ["bash", "-c", line], capture_output=True, check=True
        )
        self.assertEqual(done.stdout, expected.stdout)
        self.assertTrue(done.stdout)
