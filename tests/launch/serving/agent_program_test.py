"""The agents' program: started, started again, told of, and ended."""

import contextlib
import os
import pathlib
import sys
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from launch.serving import agent_program
from launch.serving.agent_program import AgentProgram
from tests.clocks import until

URL = "http://127.0.0.1:9/v1"


class AgentProgramTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)
    self.log = self.folder / "agent_program.log"
    self.num_finished = self.num_offered = 0
    self.failures: list[ConfigError] = []
    pause = agent_program.PAUSE_S
    agent_program.PAUSE_S = 0.01
    self.addCleanup(setattr, agent_program, "PAUSE_S", pause)

  @contextlib.asynccontextmanager
  async def running(self, code, *arguments):
    path = self.folder / "agents.py"
    path.write_text(code)
    command = " ".join([sys.executable, str(path), *arguments])
    program = AgentProgram(command, self.log, token="secret")
    async with program.running(
      URL,
      "my_run",
      num_finished=lambda: self.num_finished,
      num_offered=lambda: self.num_offered,
      fail=self.failures.append,
    ):
      yield

  def said(self):
    return self.log.read_text() if self.log.exists() else ""

  async def require_started_again(self, code):
    """After each of seven ends, if an episode has finished meanwhile."""
    async with self.running(code):
      for number in range(1, 8):
        await until(
          lambda number=number: (
            self.said().count("begun") >= number or self.failures
          )
        )
        self.num_finished += 1
    self.assertEqual(self.failures, [])

  async def until_said(self, text):
    await until(lambda: text in self.said())

  async def test_it_knows_the_server_and_the_token(self):
    code = (
      "import os, sys, time\n"
      "print(sys.argv[1:], os.environ['OPENAI_BASE_URL'],"
      " os.environ['OPENAI_API_KEY'], flush=True)\n"
      "time.sleep(60)\n"
    )
    async with self.running(code, "{url}", "x{model}"):
      await self.until_said("secret")
    self.assertEqual(self.said().strip(), f"['{URL}', 'xmy_run'] {URL} secret")

  async def test_it_is_started_again(self):
    async with self.running("print('begun', flush=True)"):
      await until(lambda: self.said().count("begun") >= 5)
    self.assertEqual(self.failures, [])

  async def test_one_that_fails_each_time_ends_the_run_with_its_last_lines(
    self,
  ):
    async with self.running("raise ValueError('no such model')"):
      await until(lambda: self.failures)
    self.assertRegex(
      str(self.failures[0]), r"3 times in a row[^$]*no such model"
    )
    self.assertEqual(self.said().count("ValueError: no such model"), 3)

  async def test_one_that_ends_while_episodes_wait_ends_the_run(self):
    self.num_offered = 1
    async with self.running("print('nothing to do', flush=True)"):
      await until(lambda: self.failures)
    self.assertRegex(
      str(self.failures[0]), r"episodes waited[^$]*status 0[^$]*nothing to do"
    )

  async def test_one_that_plays_an_episode_and_ends_is_started_again(self):
    self.num_offered = 1
    await self.require_started_again("print('begun', flush=True)")

  async def test_failures_between_which_episodes_finish_are_forgiven(self):
    await self.require_started_again(
      "print('begun', flush=True)\nraise SystemExit(1)"
    )

  async def test_a_command_that_is_none_is_told(self):
    program = AgentProgram("no_such_command x", self.log, token=None)
    async with program.running(
      URL,
      "m",
      num_finished=lambda: 0,
      num_offered=lambda: 0,
      fail=self.failures.append,
    ):
      await until(lambda: self.failures)
    self.assertRegex(str(self.failures[0]), "agents.program='no_such_command")

  async def test_it_ends_with_its_children(self):
    code = (
      "import subprocess, sys, time\n"
      "child = subprocess.Popen([sys.executable, '-c',"
      " 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
      ' print("ready", flush=True); time.sleep(600)\'])\n'
      "print(f'<{child.pid}>', flush=True)\n"
      "time.sleep(600)\n"
    )
    async with self.running(code):
      await self.until_said("ready")
      await self.until_said(">")
    child = int(self.said().split("<")[1].split(">")[0])
    await until(lambda: not is_running(child))


def is_running(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  status = pathlib.Path(f"/proc/{pid}/stat").read_text()
  return status.rpartition(")")[2].split()[0] != "Z"
