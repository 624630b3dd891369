"""Answers of a policy, as the tests play them."""

from agentrl_jax.data.records import Message
from tests.environments.answers import call


def bash(script) -> Message:
  return call("bash_action", {"script": script})


def answer(text) -> Message:
  return call("answer_action", {"answer": text})


def finish(thought="Done.") -> Message:
  return call("finish_action", {"thought": thought})
