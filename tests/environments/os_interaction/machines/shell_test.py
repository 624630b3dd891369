"""A shell that cannot be replaced is the policy's doing, with fake machines."""

import asyncio
import contextlib
import unittest
from unittest import mock

from agentrl_jax.data.records import Status
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.docker.stream import Terminal
from environments.options import OSInteractionOptions
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines import shell
from environments.os_interaction.machines.machine import MachineLost
from environments.os_interaction.session import OSSession
from environments.os_interaction.tasks.problem import AnswerMatch, OSProblem
from tests.environments.os_interaction.messages import answer, bash

PROMPT = b"\x1b[?2004hroot@box:~# "
ECHO = b"x\r\n\x1b[?2004l\r"
SILENCE, END = None, b""


class FakeTerminal(Terminal):
  """Shows its outputs one by one, each after the first with a typed line."""

  def __init__(self, *outputs):
    self.outputs = list(outputs)

  async def read(self):
    output = self.outputs.pop(0) if self.outputs else END
    if output is SILENCE:
      await asyncio.Event().wait()
    return output

  def write(self, data):
    pass

  async def close(self):
    pass


def working(*more):
  """Makes the terminal of a shell that accepts its settings."""
  return FakeTerminal(PROMPT, ECHO + PROMPT, *more)


class FakeMachine:
  """Starts the given terminals; an exception is raised instead."""

  def __init__(self, *terminals):
    self.terminals = list(terminals)
    self.calls = []

  async def terminal(self, argv):
    self.calls.append(argv)
    terminal = self.terminals.pop(0)
    if isinstance(terminal, Exception):
      raise terminal
    return terminal

  async def restart(self):
    self.calls.append("restart")


LOST = MachineLost("no terminal")


def broken():
  """Makes terminals that start no shell, by what they do."""
  return {
    "ends": FakeTerminal(END),
    "is silent": FakeTerminal(SILENCE),
    "imitates a prompt": FakeTerminal(PROMPT, SILENCE),
    "prints": FakeTerminal(b"no prompt", SILENCE),
    "does not start": LOST,
  }


def fresh(terminal):
  """Makes the function that gives the judge fresh machines."""

  @contextlib.asynccontextmanager
  async def start():
    if isinstance(terminal, EnvironmentFault):
      raise terminal
    yield FakeMachine(terminal)

  return start


class ReplacementTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    for name in ("FIRST_PROMPT_TIMEOUT_S", "NEXT_PROMPT_TIMEOUT_S"):
      self.enterContext(mock.patch.object(shell, name, 0.01))

  async def session(self, machine, *, fresh_machine):
    """Opens a session on a machine whose first shell ends at once."""
    opened = await shell.Shell.open(machine, limit_s=1.0)
    problem = OSProblem("What?", match=AnswerMatch("right"))
    judge = Judge(problem, machine, fresh_machine, limit_s=1.0)
    return OSSession(problem, judge, opened, OSInteractionOptions())

  async def test_a_profile_that_starts_no_shell_is_left_out(self):
    for name, terminal in broken().items():
      machine = FakeMachine(working(END), terminal, working(ECHO + PROMPT))
      opened = await shell.Shell.open(machine, limit_s=1.0)
      with self.subTest(name):
        reply = await opened.execute("exit")
        self.assertIs(reply.ending, shell.Ending.SHELL_EXITED)
        self.assertEqual(
          machine.calls, [shell.LOGIN, shell.LOGIN, "restart", shell.PLAIN]
        )
        reply = await opened.execute("true")
        self.assertIs(reply.ending, shell.Ending.COMPLETED)

  async def test_a_machine_without_a_shell_is_lost_by_the_policy(self):
    for name, terminal in broken().items():
      machine = FakeMachine(working(END), FakeTerminal(END), terminal)
      session = await self.session(machine, fresh_machine=fresh(working()))
      with self.subTest(name):
        step = await session.step(bash("mv /bin/bash /gone; exit"))
        self.assertIs(step.status, Status.AGENT_INVALID_ACTION)
        self.assertEqual((step.reward, step.metrics["machine_lost"]), (0, 1))

  async def test_an_engine_that_starts_no_machine_is_a_fault(self):
    for control in (EnvironmentFault("no daemon"), FakeTerminal(END), LOST):
      machine = FakeMachine(working(END), FakeTerminal(END), FakeTerminal(END))
      session = await self.session(machine, fresh_machine=fresh(control))
      with self.subTest(control=control), self.assertRaises(EnvironmentFault):
        await session.step(bash("exit"))

  async def test_a_fault_of_the_machine_stays_one(self):
    fault = EnvironmentFault("the container is gone")
    machine = FakeMachine(working(END), fault)
    session = await self.session(machine, fresh_machine=fresh(working()))
    with self.assertRaisesRegex(EnvironmentFault, "is gone"):
      await session.step(bash("exit"))

  async def test_a_machine_lost_to_the_judge_is_the_policys(self):
    machine = FakeMachine(working())
    session = await self.session(machine, fresh_machine=fresh(working()))
    with mock.patch.object(Judge, "is_solved", side_effect=LOST):
      step = await session.step(answer("right"))
    self.assertIs(step.status, Status.AGENT_INVALID_ACTION)

  async def test_a_new_machine_without_a_shell_is_a_fault(self):
    for name, terminal in broken().items():
      with self.subTest(name), self.assertRaises(EnvironmentFault):
        await shell.Shell.open(FakeMachine(terminal), limit_s=1.0)
