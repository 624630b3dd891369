"""What AgentBench's own workers said, said again.

The tasks of these attempts are not at hand, so the machine is empty. Scripts
that make what they read must get the recorded reply to the byte; so must all
that does not depend on files. The rest differs in its numbers alone.
"""

import gzip
import json
import re
import unittest

import pytest

from agentrl_jax.data.messages import message_from_json
from agentrl_jax.data.trajectory import Status
from environments.os_interaction.machines.shell import Shell
from environments.os_interaction.prompts import (
  CUT,
  KEPT_CHARS,
  NO_OUTPUT,
  OUTPUT,
)
from environments.os_interaction.session import OSSession, Rules
from environments.os_interaction.tasks.problem import Problem, Script
from tests.environments.os_interaction.data import transcripts
from tests.environments.os_interaction.engines import InSandbox, WithMachines

_QUESTION = "My problem is:\n\n"
_PREFIX = OUTPUT.format("")
# Makes its own files and asks nothing that changes from day to day.
_SELF_CONTAINED = re.compile(
  r"mkdir -p (?!.*(RANDOM|date|find|2022))", re.DOTALL
)


def episodes():
  """The messages of each recorded attempt, the first two being its opening."""
  with gzip.open(transcripts()) as file:
    for line in file:
      result = json.loads(line)["output"]["result"]
      yield result["messages"]


def exchanges(messages):
  """Each answer of the policy with what came back."""
  for said, reply in zip(messages[2:], messages[3:], strict=False):
    if said["role"] == "assistant" and reply["role"] in ("tool", "user"):
      yield message_from_json(said), reply


def script_of(answer):
  try:
    return str(json.loads(answer.tool_calls[0].arguments)["script"])
  except (LookupError, TypeError, ValueError):
    return ""


class FormatTest(unittest.TestCase):
  def test_recorded_replies_are_of_the_known_forms(self):
    for messages in episodes():
      for answer, reply in exchanges(messages):
        text = reply["content"]
        if not script_of(answer) or text == NO_OUTPUT:
          continue
        with self.subTest(reply=text[:100]):
          self.assertTrue(text.startswith(_PREFIX))
          said = text.removeprefix(_PREFIX)
          if said.endswith(CUT):
            self.assertEqual(len(said), KEPT_CHARS + len(CUT))
          else:
            self.assertLessEqual(len(said), 800)


@pytest.mark.docker
class ReplayTest(WithMachines, InSandbox, unittest.IsolatedAsyncioTestCase):
  async def replay(self, messages):
    """The opening's messages, and pairs of what was said then and now."""
    question = messages[1]["content"].split(_QUESTION, 1)[1]
    problem = Problem(question, check=(Script("bash", "false"),))
    machine = await self.engine.start("default")
    try:
      shell = await Shell.open(machine, limit_s=30.0)
      try:
        session = OSSession(problem, machine, shell, Rules())
        opening = (await session.reset()).messages
        return opening, [
          (answer, reply, await self.said(session, answer))
          for answer, reply in exchanges(messages)
        ]
      finally:
        await shell.close()
    finally:
      await machine.remove()

  async def said(self, session, answer):
    step = await session.step(answer)
    self.assertIn(step.status, (Status.RUNNING, Status.TASK_LIMIT_REACHED))
    (message,) = step.messages
    return message

  async def asyncSetUp(self):
    self.engine = self.make_engine()
    self.addAsyncCleanup(self.engine.close)

  async def test_self_contained_scripts(self):
    num_compared = 0
    for messages in episodes():
      scripts = [script_of(answer) for answer, _ in exchanges(messages)]
      if not any(map(_SELF_CONTAINED.match, scripts)):
        continue
      _, pairs = await self.replay(messages)
      for answer, reply, message in pairs:
        if _SELF_CONTAINED.match(script_of(answer)):
          num_compared += 1
          with self.subTest(script=script_of(answer)[:200]):
            self.assertEqual(message.content, reply["content"])
    self.assertGreaterEqual(num_compared, 5)

  async def test_calls_that_cannot_be_played(self):
    num_compared = 0
    for messages in episodes():
      said = [
        (answer, reply)
        for answer, reply in exchanges(messages)
        if not reply["content"].startswith("The output of the OS")
      ]
      if said:
        _, pairs = await self.replay(messages)
        for answer, reply, message in pairs:
          if (answer, reply) in said:
            num_compared += 1
            self.assertEqual(message.role, reply["role"])
            self.assertEqual(message.content, reply["content"])
    self.assertGreaterEqual(num_compared, 2)


@pytest.mark.full
class WholeReplayTest(ReplayTest):
  async def test_openings_and_what_depends_on_no_file(self):
    num_same = 0
    for messages in episodes():
      opening, pairs = await self.replay(messages)
      for ours, theirs in zip(opening, messages[:2], strict=True):
        self.assertEqual(ours.content, theirs["content"])
      num_same += sum(m.content == reply["content"] for _, reply, m in pairs)
    self.assertGreaterEqual(num_same, 60)


if __name__ == "__main__":
  unittest.main()
