"""Answers of a policy, as the tests play them."""

import json

from agentrl_jax.data.records import Message, ToolCall


def call(name, arguments, content="") -> Message:
  """Makes an answer that calls a tool; `arguments` may be broken JSON."""
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments)
  return Message(
    "assistant", content, (ToolCall(name, arguments, id="call_0"),)
  )


def bash(script) -> Message:
  return call("bash_action", {"script": script})


def answer(text) -> Message:
  return call("answer_action", {"answer": text})


def finish(thought="Done.") -> Message:
  return call("finish_action", {"thought": thought})
