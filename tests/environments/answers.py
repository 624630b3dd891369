"""Answers of a policy that call a tool, for the tests of several files."""

import json

from agentrl_jax.data.records import Message, ToolCall


def call(name, arguments, content="") -> Message:
  """Makes an answer that calls a tool; `arguments` may be broken JSON."""
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments)
  return Message(
    "assistant", content, (ToolCall(name, arguments, id="call_0"),)
  )
