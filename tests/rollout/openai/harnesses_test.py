"""Coding agents as they are, each in an episode: `make clients` installs them.

A policy that is scripted has each of them read two files by its own shell tool,
and answer. The agents stream, name their episode in the URL, and know nothing
of training.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile

import pytest

from tests.rollout import talking
from tests.rollout.openai.clients_test import CLIENTS, PROGRAMS
from tests.rollout.openai.wires.messages_test import Messages

CONTEXT = 1 << 18
LIMIT_S = 240.0
QUESTION = "What is in a.txt and b.txt?"
ANSWER = "They have apples and pears."
BIN = CLIENTS / "node_modules" / ".bin"
PYTHON = CLIENTS / "bin" / "python"
# A provider of our own, and nothing that a run need not tell others.
OPENCODE = {
  "provider": {
    "own": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "<url>/v1", "apiKey": "-"},
      "models": {"tiny": {}},
    }
  },
  "model": "own/tiny",
  "autoupdate": False,
  "share": "disabled",
}
CODEX = (
  'model_providers.own={name="own",base_url="<url>/v1",wire_api="responses",'
  'env_key="OPENAI_API_KEY"}'
)


@dataclasses.dataclass(frozen=True)
class Harness:
  """Command and variables of an agent; <url> stands for the episode's."""

  command: tuple[str, ...]
  tool: str  # with which it runs commands of a shell
  arguments: str = '{"command": "cat FILE", "description": "Reads a file."}'
  env: tuple[tuple[str, str], ...] = ()
  last: str = ANSWER  # as the policy writes it
  num_lines: int = 1


HARNESSES = {
  "claude": Harness(
    (f"{BIN}/claude", "-p", QUESTION, "--allowedTools", "Bash"),
    "Bash",
    env=(
      ("ANTHROPIC_BASE_URL", "<url>"),
      ("ANTHROPIC_API_KEY", "-"),
      ("ANTHROPIC_MODEL", "tiny"),
      ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ),
  ),
  "codex": Harness(
    (
      f"{BIN}/codex",
      "exec",
      "--skip-git-repo-check",
      "--dangerously-bypass-approvals-and-sandbox",
      "-m",
      "tiny",
      "-c",
      "model_provider=own",
      "-c",
      CODEX,
      QUESTION,
    ),
    "exec_command",
    '{"cmd": "cat FILE"}',
    env=(("OPENAI_API_KEY", "-"),),
  ),
  "qwen": Harness(
    (f"{BIN}/qwen", "-p", QUESTION, "--yolo"),
    "run_shell_command",
    '{"command": "cat FILE", "is_background": false}',
    env=(
      ("OPENAI_BASE_URL", "<url>/v1"),
      ("OPENAI_API_KEY", "-"),
      ("OPENAI_MODEL", "tiny"),
    ),
  ),
  "opencode": Harness(
    (f"{BIN}/opencode", "run", QUESTION),
    "bash",
    env=(
      ("OPENCODE_CONFIG_CONTENT", json.dumps(OPENCODE)),
      ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ),
    num_lines=2,  # the second gives the conversation a title
  ),
  "smolagents": Harness(
    (
      str(PYTHON),
      str(PROGRAMS / "smolagents_program.py"),
      "<url>/v1",
      QUESTION,
    ),
    "read",
    '{"path": "FILE"}',
    last='<tool_call>{"name": "final_answer", "arguments": {"answer": "'
    + f'{ANSWER}"}}}}</tool_call>',
    num_lines=3,  # it writes its calls anew, as text
  ),
}


class Policy(talking.Scripted):
  """Answers calls that show the tool as told, and all others with a title."""

  tool = ""

  async def generate(self, prompt, spec):
    text = talking.codec().decode(prompt)
    if f"{self.tool}(" in text:
      return await super().generate(prompt, spec)
    others, says = self.prompts, self.says
    self.prompts, self.says = [], ["Two files<|end|>"]
    try:
      return await super().generate(prompt, spec)
    finally:
      self.prompts, self.says = others, says


@pytest.mark.full
@pytest.mark.timeout(600)
class HarnessesTest(Messages):
  async def asyncSetUp(self):
    self.policy = Policy()
    await self.serve(
      generator=self.policy,
      limits=dict(context=CONTEXT),
      rules=dict(max_tokens=CONTEXT, max_answer_tokens=400, max_lines=8),
    )

  async def check(self, name):
    harness = HARNESSES[name]
    if not shutil.which(harness.command[0]):
      pytest.skip(f"needs {harness.command[0]}: make clients")
    says = [
      f'Let me look.<tool_call>{{"name": "{harness.tool}", "arguments": '
      f"{harness.arguments.replace('FILE', file)}}}</tool_call><|end|>"
      for file in ("a.txt", "b.txt")
    ]
    says.append(f"{harness.last}<|end|>")
    self.policy.tool, self.policy.says = harness.tool, [*says]
    playing = self.offer()
    episode = await self.served.episodes.take(9)
    output = await self.play(
      harness, f"{self.served.url}/episodes/{episode.id}"
    )
    self.assertIn(ANSWER, output)
    played = await self.end(playing, episode.id)
    self.assertEqual(len(played.lines), harness.num_lines, played.transcript)
    if harness.num_lines == 1:
      self.check_record(played, says)
    sampled = [turn.sampled.tolist() for turn in played.turns]
    for text in says:
      self.assertIn(talking.codec().encode(text).tolist(), sampled)
    shown = json.dumps(played.transcript)
    self.assertIn("apples!", shown)
    self.assertIn("pears!", shown)

  async def play(self, harness, url):
    folder = pathlib.Path(
      self.enterContext(tempfile.TemporaryDirectory(prefix="harness"))
    )
    (folder / "a.txt").write_text("apples!")
    (folder / "b.txt").write_text("pears!")
    given = {name: text.replace("<url>", url) for name, text in harness.env}
    program = await asyncio.create_subprocess_exec(
      *(part.replace("<url>", url) for part in harness.command),
      stdin=asyncio.subprocess.DEVNULL,
      stdout=asyncio.subprocess.PIPE,
      stderr=asyncio.subprocess.STDOUT,
      cwd=folder,
      env={"PATH": os.environ["PATH"], "HOME": str(folder)} | given,
      start_new_session=True,
    )
    try:
      output, _ = await asyncio.wait_for(program.communicate(), LIMIT_S)
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, 9)
    self.assertEqual(program.returncode, 0, output.decode()[-2000:])
    return output.decode()

  async def test_claude_code(self):
    await self.check("claude")

  async def test_codex(self):
    await self.check("codex")

  async def test_qwen_code(self):
    await self.check("qwen")

  async def test_opencode(self):
    await self.check("opencode")

  async def test_smolagents(self):
    await self.check("smolagents")
