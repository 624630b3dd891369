"""Tests docs/environments.md by following it from top to bottom.

Every block of the page is used in its order, in an empty folder: a block of
Python is the file that the text before it names, any other block is commands.
Of the parts that need Docker, below the last heading, the Dockerfile is built
here; `pool_test` covers the rest. FOLDER is a tiny model with random weights.
"""

import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from environments.images import build_worker_base
from tests.clocks import wait_until
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL
from tests.service.docker.engine_for_tests import base_or_skip, connect_or_skip

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "environments.md"
DEADLINE_S = 600
# The page's run trains for minutes, which the conformance tests do. Here the
# expert plays instead, so that the config is read and used.
TRAINS = "python -m launch.train --config=experiment.py"
# Where OpenEnv is installed already, which the page tells how to do.
SERVERS = pathlib.Path(
  os.environ.get("AGENTRL_SERVERS", ROOT / ".venv-servers")
)
TRAINS_BY_SERVERS = {
  f"python -m launch.train --config={name}.py:FOLDER": (
    f"python -m launch.evaluate --config={name}.py:FOLDER --policy=scripted "
    f"--tasks={task}/test --config.evaluation.num_tasks=1"
  )
  for name, task in (
    ("clock", "clock"),
    ("echo", "demo"),
    ("train_shop", "shop"),
  )
}
SHORTER = TRAINS_BY_SERVERS | {
  TRAINS: (
    "python -m launch.evaluate --config=experiment.py --policy=expert "
    "--config.evaluation.num_tasks=8"
  ),
  "python -m venv servers && servers/bin/pip install openenv": (
    f"ln -s {SERVERS} servers"
  ),
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks():
  """Returns (file name or None, text) of each block that needs no Docker."""
  page = DOCUMENT.read_text().partition("\n## Speed")[0]
  end = 0
  for block in BLOCK.finditer(page):
    before, end = page[end : block.start()], block.end()
    language, text = block.groups()
    if language == "python":
      named = re.search(r"`(\w+\.py)`[^`]*:\s*\Z", before)
      assert named, f"nothing says which file this is: {text[:80]}"
      yield named[1], text
    else:
      assert not language, f"what is to be done with {language}?"
      yield None, text


class _Folder:
  """The folder in which a reader follows the page."""

  def __init__(self, path, port, instead):
    self._path, self._port, self._instead = path, port, instead
    self._servers = []
    self.outputs = {}  # of each command
    self._environment = {
      **os.environ,
      "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    self._environment.pop("PYTHONPATH", None)

  def follow(self, file, text):
    text = text.replace("5030", str(self._port))
    if file is not None:
      (self._path / file).write_text(text)
    elif "agentrl_jax.service.worker" in text:
      self._serve(text)
    else:
      self._run(text)

  def _run(self, command):
    command = command.strip()
    done = subprocess.run(
      ["bash", "-ec", self._instead.get(command, command)],
      cwd=self._path,
      env=self._environment,
      capture_output=True,
      text=True,
      timeout=DEADLINE_S,
      check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode:
      raise AssertionError(
        f"{command} gave {done.returncode}: {output[-3000:]}"
      )
    self.outputs[command] = output

  def _serve(self, command):
    server = subprocess.Popen(
      ["bash", "-ec", f"exec {command}"],
      cwd=self._path,
      env=self._environment,
      stderr=subprocess.DEVNULL,
    )
    self._servers.append(server)

    def answers():
      if server.poll() is not None:
        raise AssertionError(f"{command} does not serve: {server.returncode}")
      return self._answers()

    wait_until(answers, command)

  def _answers(self):
    with socket.socket() as client:
      return client.connect_ex(("127.0.0.1", self._port)) == 0

  def leave(self):
    for server in self._servers:
      server.terminate()
      server.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
class FollowedTest(unittest.TestCase):
  instead, of_the_run = SHORTER, r"backwards . 8 . 100.0 %"

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.path = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
    write_model(cls.path / "FOLDER")
    folder = _Folder(cls.path, port, cls.instead)
    cls.addClassCleanup(folder.leave)
    for file, text in blocks():
      lacks = cls.instead is SHORTER and not SERVERS.exists()
      if not (lacks and re.search(r"servers/bin|echo\.py", text) and not file):
        folder.follow(file, text)
    cls.outputs = folder.outputs

  def test_contracts_of_the_page_pass(self):
    for module, least in (
      ("backwards_test", 10),
      ("shop_test", 10),
      ("wrapped_test", 20),
    ):
      output = self.outputs[f"python -m unittest {module}"]
      self.assertRegex(output, r"\nOK\b")
      self.assertGreater(int(re.search(r"Ran (\d+) tests", output)[1]), least)

  def test_config_of_the_page_is_read(self):
    self.assertRegex(self.outputs[TRAINS], self.of_the_run)

  def test_the_expert_plays_through_the_worker(self):
    lines = self.outputs["python play.py"].splitlines()
    self.assertRegex(lines[0], r"\AWrite \w( \w)+ backwards\.\Z")
    self.assertEqual(lines[-1], "completed 1.0")


@pytest.mark.full
class FollowedToTheLetterTest(FollowedTest):
  of_the_run = "RL"
  instead = {
    command: shlex.join(
      [
        *shlex.split(command),
        *(f"--config.{key}={value}" for key, value in SMALL.items()),
      ]
    )
    for command in TRAINS_BY_SERVERS
  }

  def test_the_policy_is_trained(self):
    for name in ("backwards", "clock", "demo", "shop"):
      run = self.path / "runs" / name
      ledger = (run / "trained_groups.jsonl").read_text().splitlines()
      self.assertGreaterEqual(len(ledger), 2)
      self.assertTrue((run / "report.html").stat().st_size)


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(900)
class DockerfileTest(unittest.IsolatedAsyncioTestCase):
  """Builds an environment's image from the page's Dockerfile."""

  async def test_it_serves_what_the_page_wrote(self):
    docker = connect_or_skip(type(self))
    docker.api.timeout = 600  # pip says nothing for a while
    base = build_worker_base(docker, base=base_or_skip(docker))
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    text = re.search(
      r"```dockerfile\n(.*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    (folder / "Dockerfile").write_text(text[1])
    files = dict(block for block in blocks() if block[0])
    (folder / "backwards.py").write_text(files["backwards.py"])
    tag = "agentrl_jax/backwards:test"
    docker.images.build(
      path=str(folder), tag=tag, buildargs={"BASE": base}, rm=True
    )
    spec = ContainerSpec(image=tag, options={"length": 3})
    task = Task("backwards", "test", 7)
    async with (
      container_worker(docker, spec) as environment,
      environment.open(task, seed=0) as session,
    ):
      step = await session.reset()
    self.assertRegex(
      step.messages[-1].content, r"\AWrite \w \w \w backwards\.\Z"
    )


class PageTest(unittest.TestCase):
  def test_lists_every_environment(self):
    listed = re.findall(r"\]\(\.\./environments/(\w+)\)", DOCUMENT.read_text())
    folders = {
      path.name
      for path in (ROOT / "environments").iterdir()
      if (path / "README.md").exists() or path.name == "arithmetic"
    }
    self.assertLessEqual(folders, set(listed))
    self.assertEqual(len(set(listed)), len(listed))
    for name in listed:
      self.assertTrue((ROOT / "environments" / name).is_dir(), name)
