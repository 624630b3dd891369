"""Sessions repeat the recorded replies of AgentBench's own workers.

The tasks of these episodes are not available, so the machine is empty. Scripts
that create the files they read must get the recorded reply to the byte, as must
calls that do not depend on files.
"""

import gzip
import json
import re

import pytest

from agentrl_jax.data.records import Status, message_from_json
from environments.options import OSInteractionOptions
from environments.os_interaction.machines.shell import Shell
from environments.os_interaction.prompts import OUTPUT
from environments.os_interaction.session import OSSession
from environments.os_interaction.tasks.problem import OSProblem, Script
from tests.environments.os_interaction.data import transcripts
from tests.environments.os_interaction.engines import InSandbox

_QUESTION = "My problem is:\n\n"
_PREFIX = OUTPUT.format("")
# Creates its own files, and prints nothing that changes from day to day.
_SELF_CONTAINED = re.compile(
  r"mkdir -p (?!.*(RANDOM|date|find|2022))", re.DOTALL
)


def episodes():
  """Yields the messages of each recorded episode, first the opening's two."""
  with gzip.open(transcripts()) as file:
    for line in file:
      result = json.loads(line)["output"]["result"]
      yield result["messages"]


def exchanges(messages):
  """Yields each answer of the policy with its reply."""
  for answer, reply in zip(messages[2:], messages[3:], strict=False):
    if answer["role"] == "assistant" and reply["role"] in ("tool", "user"):
      yield message_from_json(answer), reply


def script_of(answer):
  try:
    return str(json.loads(answer.tool_calls[0].arguments)["script"])
  except (LookupError, TypeError, ValueError):
    return ""


@pytest.mark.docker
class ReplayTest(InSandbox):
  async def replay(self, messages):
    """Returns the opening, and each answer with its recorded and new reply."""
    question = messages[1]["content"].split(_QUESTION, 1)[1]
    problem = OSProblem(question, check=(Script("bash", "false"),))
    machine = await self.engine.start("default")
    try:
      shell = await Shell.open(machine, limit_s=30.0)
      try:
        session = OSSession(problem, machine, shell, OSInteractionOptions())
        opening = (await session.reset()).messages
        return opening, [
          (answer, reply, await self.reply(session, answer))
          for answer, reply in exchanges(messages)
        ]
      finally:
        await shell.close()
    finally:
      await machine.remove()

  async def reply(self, session, answer):
    step = await session.step(answer)
    self.assertIn(step.status, (Status.RUNNING, Status.TASK_LIMIT_REACHED))
    (message,) = step.messages
    return message

  async def asyncSetUp(self):
    self.engine = self.open_engine()

  async def test_self_contained_scripts(self):
    num_compared = 0
    for messages in episodes():
      scripts = [script_of(answer) for answer, _ in exchanges(messages)]
      if not any(map(_SELF_CONTAINED.match, scripts)):
        continue
      _, replies = await self.replay(messages)
      for answer, reply, message in replies:
        if _SELF_CONTAINED.match(script_of(answer)):
          num_compared += 1
          with self.subTest(script=script_of(answer)[:200]):
            self.assertEqual(message.content, reply["content"])
    self.assertGreaterEqual(num_compared, 5)

  async def test_calls_that_cannot_be_played(self):
    num_compared = 0
    for messages in episodes():
      broken = [
        (answer, reply)
        for answer, reply in exchanges(messages)
        if not reply["content"].startswith("The output of the OS")
      ]
      if broken:
        _, replies = await self.replay(messages)
        for answer, reply, message in replies:
          if (answer, reply) in broken:
            num_compared += 1
            self.assertEqual(message.role, reply["role"])
            self.assertEqual(message.content, reply["content"])
    self.assertGreaterEqual(num_compared, 2)


@pytest.mark.full
class AllReplaysTest(ReplayTest):
  async def test_openings_and_replies_that_need_no_file(self):
    num_same = 0
    for messages in episodes():
      opening, replies = await self.replay(messages)
      for ours, theirs in zip(opening, messages[:2], strict=True):
        self.assertEqual(ours.content, theirs["content"])
      num_same += sum(m.content == reply["content"] for _, reply, m in replies)
    self.assertGreaterEqual(num_same, 60)
