"""Agents of the documentation end their episodes as what ended them."""

import asyncio
import contextlib
import os
import pathlib
import sys
import tempfile

import pytest
from absl.testing import parameterized

from agentrl_jax.data.records import Status
from agentrl_jax.errors import GeneratorFault
from tests.launch.serving.agents import ROOT, documented_program
from tests.rollout import talking
from tests.rollout.openai.agents_playing import WAIT_S, Playing

NO_CALL = "I know it.<|end|>"


class _Scripted(talking.Scripted):
  async def generate(self, prompt, spec):
    if not self.says:
      raise GeneratorFault("on purpose")
    return await super().generate(prompt, spec)


def test_the_documented_program_is_a_program(tmp_path):
  source = pathlib.Path(documented_program(tmp_path)).read_text()
  compile(source, "agents.py", "exec")
  assert "sys.argv" in source


@pytest.mark.slow
class DocumentedAgentsTest(parameterized.TestCase, Playing):
  async def asyncSetUp(self):
    self.policy = _Scripted()
    await self.serve(
      generator=self.policy,
      limits=dict(context=4096),
      rules=dict(max_turns=2, max_tokens=1500, max_answer_tokens=1500),
    )

  @parameterized.parameters("docs/serving.md", "docs/examples/plan_and_work.py")
  async def test_each_end_is_told(self, document):
    program = str(ROOT / document)
    if document.endswith(".md"):
      folder = self.enterContext(tempfile.TemporaryDirectory())
      program = documented_program(pathlib.Path(folder))
    process = await asyncio.create_subprocess_exec(
      sys.executable,
      program,
      f"{self.served.url}/v1",
      talking.NAME,
      env=os.environ | {"OPENAI_API_KEY": "-"},
    )
    try:
      for says, status in (
        ([NO_CALL] * 2, Status.TASK_LIMIT_REACHED),
        (["0123" * 1000], Status.AGENT_CONTEXT_LIMIT),
        ([NO_CALL], Status.CANCELLED),
        ([], Status.CANCELLED),
      ):
        self.policy.says = list(says)
        played = await asyncio.wait_for(self.offer(), WAIT_S)
        self.assertIs(played.status, status)
        self.assertEqual(played.reward, 0.0)
      await self.served.episodes.close()
      ended = await asyncio.wait_for(process.wait(), WAIT_S)
      self.assertEqual(ended, 0)
    finally:
      with contextlib.suppress(ProcessLookupError):  # it has ended well
        process.kill()
      await process.wait()
