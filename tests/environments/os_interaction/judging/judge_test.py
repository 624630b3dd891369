"""Right answers are found out before the policy's first command."""

import json
import unittest

import pytest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Task
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines.machine import MachineLost
from environments.os_interaction.tasks.problem import Problem, Script
from tests.environments.os_interaction.engines import (
  InSandbox,
  OnDocker,
  WithMachines,
)

NAME = "os_interaction"
COMPARE = Script("python", None, "check/integer-match.py")


def asking(example, init="true"):
  return Problem(
    "How many?",
    init=(Script("bash", init),),
    check=(None, COMPARE),
    example=Script("bash", example),
  )


class Answers(WithMachines):
  async def test_a_changed_machine_changes_no_answer(self):
    problem = asking("cat /root/n | wc -l")
    async with self.machine() as machine:
      await machine.run(["bash", "-c", "seq 9 > /root/n"], limit_s=20.0)
      judge = await Judge.prepare(problem, machine, self.machine, limit_s=20.0)
      await machine.run(["bash", "-c", "rm /root/n; rm /bin/wc"], limit_s=20.0)
      self.assertTrue(await judge.is_solved("9"))
      self.assertFalse(await judge.is_solved("0"))

  async def test_examples_that_write_are_noticed(self):
    for example, expected in (
      ("ls /root | wc -l", False),
      ("sort /etc/passwd > t; wc -l < t; rm t", False),
      ("find / 2>/dev/null | wc -l", False),
      ("touch /root/seen; echo 1", True),
      ("echo x >> /root/.bashrc; echo 1", True),
      ("mkdir /root/d; echo 1", True),
      ("rm /root/.profile; echo 1", True),
      ("mv /root/.profile /root/p; echo 1", True),
      ("chmod 700 /home; echo 1", True),
    ):
      async with self.machine() as machine:
        judge = await Judge.prepare(
          asking(example), machine, self.machine, limit_s=20.0
        )
        with self.subTest(example=example):
          self.assertIs(judge.is_marked, expected)
          self.assertEqual(judge.gold.code, 0)

  async def test_a_written_machine_is_not_played_on(self):
    environment = self.make_environment()
    problem = asking("touch /root/seen; ls /root | wc -l")
    environment._loaded = (problem,)
    async with environment.open(Task(NAME, "dev", 0), seed=0) as session:
      step = await session.step(self.call("bash_action", "ls /root | wc -l"))
      self.assertIn("0\r\n", step.messages[0].content)
      step = await session.step(self.call("answer_action", "1"))
      self.assertEqual(step.reward, 1.0)

  def call(self, tool, value):
    call = ToolCall(tool, json.dumps({"value": value}), id="call_0")
    return Message("assistant", tool_calls=(call,))


@pytest.mark.docker
class AnswersInSandboxTest(
  Answers, InSandbox, unittest.IsolatedAsyncioTestCase
):
  async def test_find_ends_well_everywhere(self):
    async with self.machine() as machine:
      done = await machine.run(["find", "/"], limit_s=30.0)
      self.assertEqual((done.code, done.stderr), (0, b""))
      done = await machine.run(
        ["bash", "-c", "ps -p 1 -o args=; cat /proc/1/environ"], limit_s=30.0
      )
      self.assertIn(b"docker-init", done.stdout)
      self.assertNotEqual(done.code, 0)

  async def test_open_files_are_bounded_by_the_machine(self):
    async with self.machine() as machine:
      done = await machine.run(
        ["bash", "-c", "ulimit -Sn; ulimit -Hn"], limit_s=30.0
      )
    self.assertEqual(done.stdout, b"1024\n4096\n")


@pytest.mark.docker
@pytest.mark.slow
class UsersOnDockerTest(
  WithMachines, OnDocker, unittest.IsolatedAsyncioTestCase
):
  async def test_a_pipe_for_users_costs_the_machine(self):
    for script in (
      "rm /etc/passwd; mkfifo /etc/passwd",
      "mkfifo /p; ln -sf /p /etc/group",
    ):
      async with self.machine() as machine:
        await machine.seal()
        await machine.run(["bash", "-c", script], limit_s=20.0)
        with self.subTest(script), self.assertRaises(MachineLost):
          await machine.restart()
        with self.subTest(script), self.assertRaises(MachineLost):
          await machine.terminal(["/bin/bash"])


@pytest.mark.docker
@pytest.mark.full
class AnswersOnDockerTest(Answers, OnDocker, unittest.IsolatedAsyncioTestCase):
  test_open_files = (
    AnswersInSandboxTest.test_open_files_are_bounded_by_the_machine
  )


if __name__ == "__main__":
  unittest.main()
