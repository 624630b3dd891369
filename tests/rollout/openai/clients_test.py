"""Agents of common client libraries, each in an episode.

Each library runs in a program of its own, against a server with a scripted
policy: two calls of a tool, then an answer.
"""

import asyncio
import dataclasses
import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from agentrl_jax.data.records import Status
from tests.rollout import talking
from tests.rollout.openai import client_programs
from tests.rollout.openai.agents_playing import Playing

ROOT = pathlib.Path(__file__).parents[3]
PROGRAMS = pathlib.Path(client_programs.__file__).parent
# An interpreter that has the libraries, which need not suit ours.
CLIENTS = pathlib.Path(
  os.environ.get("AGENTRL_CLIENTS", ROOT / ".venv-clients")
)
LIMIT_S = 240.0  # of one program, most of it imports
CONTEXT = 8192


@dataclasses.dataclass(frozen=True)
class Client:
  """A library, and the tool that its program has the policy call."""

  module: str
  tool: str = "add"
  says: str = "It is 10."
  calls: tuple[tuple[int, int], ...] = ((1, 2), (3, 7))


LIBRARIES = {
  "openai": Client("openai"),
  "litellm": Client("litellm"),
  "langchain": Client("langchain_openai"),
  "langgraph": Client("langgraph"),
  "openai_agents": Client("agents"),
  "pydantic_ai": Client("pydantic_ai"),
  "instructor": Client("instructor", "Add", "", ((1, 2), (3, 7), (4, 6))),
}


def python_with(module: str) -> str:
  """Returns the interpreter of a library's program, or skips."""
  if importlib.util.find_spec(module) is not None:
    return sys.executable
  actual = CLIENTS / "bin" / "python"
  if actual.exists():
    return str(actual)
  pytest.skip(f"needs {module}: make clients, or AGENTRL_CLIENTS=FOLDER")


def test_every_library_has_a_program_that_compiles():
  for name, library in LIBRARIES.items():
    source = (PROGRAMS / f"{name}_program.py").read_text()
    compile(source, name, "exec")
    assert library.tool in source


class Played(Playing):
  async def asyncSetUp(self):
    self.policy = talking.Scripted()
    await self.serve(
      generator=self.policy,
      limits=dict(context=CONTEXT),
      rules=dict(max_tokens=CONTEXT, max_answer_tokens=400),
    )

  async def check(self, name, *mode):
    """Plays one episode, and compares the record with what was sampled."""
    library = LIBRARIES[name]
    python = python_with(library.module)
    reply = [
      f'<tool_call>{{"name": "{library.tool}", "arguments": '
      f'{{"a": {a}, "b": {b}}}}}</tool_call><|end|>'
      for a, b in library.calls
    ]
    reply += [f"{library.says}<|end|>"] if library.says else []
    self.policy.says = [*reply]
    self.policy.prompts.clear()
    playing = self.offer()
    _, episode = await self.post("episodes", wait_s=20)
    result = await self.run_program(python, name, episode["id"], *mode)
    self.assertEqual(result["answer"], library.says or "10")
    self.assertEqual(result["calls"], [*map(list, library.calls)])
    self.check_record(await self.end(playing, episode["id"]), reply)

  async def run_program(self, python, name, *arguments):
    program = await asyncio.create_subprocess_exec(
      python,
      PROGRAMS / f"{name}_program.py",
      f"{self.served.url}/v1",
      *arguments,
      stdout=asyncio.subprocess.PIPE,
      stderr=asyncio.subprocess.PIPE,
      env=os.environ | {"PYTHONPATH": "", "LANGSMITH_TRACING": "false"},
    )
    try:
      out, errors = await asyncio.wait_for(program.communicate(), LIMIT_S)
    finally:
      if program.returncode is None:
        program.kill()
        await program.wait()
    self.assertEqual(program.returncode, 0, errors.decode()[-4000:])
    return json.loads(out.decode().splitlines()[-1])

  def check_record(self, played, reply):
    """Checks that the record has the sampled tokens, turn by turn."""
    self.assertEqual(played.status, Status.COMPLETED)
    self.assertEqual(len(played.turns), len(reply))
    stream: list[int] = []
    for turn, text, prompt in zip(
      played.turns, reply, self.policy.prompts, strict=True
    ):
      sampled = talking.codec().encode(text)
      np.testing.assert_array_equal(turn.sampled, sampled)
      self.assertEqual(stream + turn.observation.tolist(), prompt)
      stream = prompt + sampled.tolist()


class ClientsTest(Played):
  @pytest.mark.slow
  async def test_openai(self):
    await self.check("openai")
    await self.check("openai", "stream")

  @pytest.mark.slow
  async def test_pydantic_ai(self):
    await self.check("pydantic_ai")
    await self.check("pydantic_ai", "stream")

  @pytest.mark.slow
  async def test_openai_agents(self):
    await self.check("openai_agents")
    await self.check("openai_agents", "stream")

  @pytest.mark.full
  @pytest.mark.timeout(600)
  async def test_instructor(self):
    await self.check("instructor")

  @pytest.mark.full
  @pytest.mark.timeout(600)
  async def test_langchain(self):
    await self.check("langchain")
    await self.check("langchain", "stream")

  @pytest.mark.full
  @pytest.mark.timeout(600)
  async def test_langgraph(self):
    await self.check("langgraph")
    await self.check("langgraph", "stream")

  @pytest.mark.full
  @pytest.mark.timeout(600)
  async def test_litellm(self):
    await self.check("litellm")
    await self.check("litellm", "stream")
