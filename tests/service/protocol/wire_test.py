"""Tests that steps, answers and indices cross the wire unchanged."""

import json
import unittest

from agentrl_jax.data.records import Message, Status, Tool, ToolCall
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.protocol import wire

TOOL = Tool("add", "Adds.", {"type": "object", "properties": {}})


def across(body):
  return json.loads(json.dumps(body))


class WireTest(unittest.TestCase):
  def test_steps_survive_the_round_trip(self):
    calls = (ToolCall("add", '{"a": 1}', "c1"),)
    for step in (
      Step((Message("system", "Be brief."), Message("user", "\x00€"))),
      Step((Message("tool", "2", tool_call_id="c1"),), 0.5),
      Step((Message("assistant", "", calls),), metrics={"turns": 2.0}),
      *(Step((), 1.0, status) for status in Status),
    ):
      with self.subTest(step=step):
        body = across(wire.step_to_json(step, (TOOL,)))
        self.assertEqual(wire.step_from_json(body), step)
        running = step.status is Status.RUNNING
        self.assertEqual(wire.tools_from_json(body), (TOOL,) * running)

  def test_reads_a_controllers_report(self):
    body = {"finish": True, "reward": 1, "status": "completed", "messages": []}
    step = wire.step_from_json(body | {"metrics": {"turns": 2}})
    self.assertEqual(step, Step((), 1.0, Status.COMPLETED, {"turns": 2.0}))

  def test_reads_reports_of_agentrls_tasks(self):
    step = wire.step_from_json(
      {
        "messages": None,
        "reward": None,
        "metric": {"turns": 2, "right": True, "why": "so", "each": [1.0]},
      }
    )
    self.assertEqual(step, Step((), metrics={"turns": 2.0, "right": 1.0}))
    anthropic = {"name": "add", "input_schema": TOOL.parameters}
    openai = {"type": "function", "function": {"name": "add"}}
    tools = wire.tools_from_json({"tools": [anthropic, openai]})
    self.assertEqual([tool.name for tool in tools], ["add", "add"])
    self.assertEqual(tools[0].parameters, TOOL.parameters)
    self.assertEqual(wire.tools_from_json({"tools": None}), ())

  def test_numbers_that_are_not_finite_are_a_fault(self):
    for number in ("NaN", "1e39", "-Infinity", "1" + "0" * 400, '"inf"', '""'):
      body = json.loads(f'{{"messages": [], "reward": {number}}}')
      with (
        self.subTest(number=number),
        self.assertRaisesRegex(EnvironmentFault, "^reward="),
      ):
        wire.step_from_json(body)
    body = json.loads('{"messages": [], "metric": {"turns": NaN}}')
    with self.assertRaisesRegex(EnvironmentFault, "^metrics"):
      wire.step_from_json(body)

  def test_the_answer_is_the_last_assistant_message(self):
    messages = [
      {"role": "assistant", "content": "first"},
      {"role": "assistant", "content": None},
      {"role": "user", "content": "not mine"},
    ]
    self.assertEqual(wire.answer_from_json(messages), Message("assistant"))

  def test_indices_survive_the_round_trip(self):
    for indices in (range(3, 10**15, 7), (5, 3, 1), ()):
      body = across(wire.indices_to_json(indices))
      self.assertEqual(wire.indices_from_json(body), indices)
      self.assertLess(len(json.dumps(body)), 60)
