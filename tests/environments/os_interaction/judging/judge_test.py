"""Right answers are computed before the policy's first command."""

import itertools
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Task
from environments.os_interaction.judging import judge as judge_module
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines.machine import MachineLost
from environments.os_interaction.tasks.outcomes import ProcessesEnded
from environments.os_interaction.tasks.problem import OSProblem, Script
from tests.environments.os_interaction.engines import NAME, InSandbox, OnDocker
from tests.environments.os_interaction.messages import answer, bash

COMPARE = Script("python", None, "check/integer-match.py")


def question(example):
  return OSProblem(
    "How many?", check=(None, COMPARE), example=Script("bash", example)
  )


class Answers:
  async def test_a_changed_machine_changes_no_answer(self):
    problem = question("cat /root/n | wc -l")
    async with self.machine() as machine:
      await machine.run(["bash", "-c", "seq 9 > /root/n"], limit_s=20.0)
      judge = await Judge.prepare(problem, machine, self.machine, limit_s=20.0)
      await machine.run(["bash", "-c", "rm /root/n; rm /bin/wc"], limit_s=20.0)
      self.assertTrue(await judge.is_solved("9"))
      self.assertFalse(await judge.is_solved("0"))

  async def test_examples_that_write_are_noticed(self):
    machine = await self.enterAsyncContext(self.machine())
    for example, expected in (
      ("ls /root | wc -l", False),
      ("sort /etc/passwd > t; wc -l < t; rm t", False),
      ("find / 2>/dev/null | wc -l", False),
      ("touch /root/seen; echo 1", True),
      ("echo x >> /root/.bashrc; echo 1", True),
      ("mkdir /root/d; echo 1", True),
      ("rm /root/.bashrc; echo 1", True),
      ("mv /root/.profile /root/p; echo 1", True),
      ("chmod 700 /home; echo 1", True),
    ):
      judge = await Judge.prepare(
        question(example), machine, self.machine, limit_s=20.0
      )
      with self.subTest(example=example):
        self.assertIs(judge.example_wrote, expected)
        self.assertEqual(judge.gold.code, 0)

  async def test_a_policy_gets_a_machine_that_no_example_wrote_to(self):
    environment = self.make_environment()
    problem = question("touch /root/seen; ls /root | wc -l")
    environment._loaded = {"dev": (problem,)}
    async with environment.open(Task(NAME, "dev", 0), seed=0) as session:
      step = await session.step(bash("ls /root | wc -l"))
      self.assertIn("0\r\n", step.messages[0].content)
      step = await session.step(answer("1"))
      self.assertEqual(step.reward, 1.0)


@pytest.mark.docker
class ProcessesTest(unittest.IsolatedAsyncioTestCase):
  async def test_a_process_that_is_about_to_end_has_been_ended(self):
    other, one = {"2": "paperd-old"}, {"1": "paperd"}
    ended = OSProblem("", outcome=ProcessesEnded("paperd", "paperd-old"))
    for states, is_right in (
      ((other | one, other), True),
      ((other | one, other, {}), False),
      ((other | one, other | one, other), True),
    ):
      with self.subTest(states=states):
        machine = mock.Mock()
        machine.read_processes = mock.AsyncMock(
          side_effect=itertools.chain(states, itertools.repeat(states[-1]))
        )
        judge = await Judge.prepare(ended, machine, mock.Mock(), limit_s=1)
        with mock.patch.object(judge_module, "EXIT_TIMEOUT_S", 0.05):
          self.assertEqual(await judge.is_solved(None), is_right)


class AnswersInSandboxTest(Answers, InSandbox):
  async def test_find_has_no_errors(self):
    async with self.machine() as machine:
      done = await machine.run(["find", "/"], limit_s=30.0)
      self.assertEqual((done.code, done.stderr), (0, b""))
      done = await machine.run(
        ["bash", "-c", "ps -p 1 -o args=; cat /proc/1/environ"], limit_s=30.0
      )
      self.assertIn(b"docker-init", done.stdout)
      self.assertNotEqual(done.code, 0)

  async def test_open_files_are_limited(self):
    async with self.machine() as machine:
      done = await machine.run(
        ["bash", "-c", "ulimit -Sn; ulimit -Hn"], limit_s=30.0
      )
    self.assertEqual(done.stdout, b"1024\n4096\n")


@pytest.mark.docker
@pytest.mark.slow
class UsersOnDockerTest(OnDocker):
  async def test_a_pipe_for_a_user_file_stops_the_machine(self):
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
class AnswersOnDockerTest(Answers, OnDocker):
  test_open_files = AnswersInSandboxTest.test_open_files_are_limited
