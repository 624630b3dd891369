"""The commands of docs/protocol.md run, with other ports."""

import contextlib
import io
import pathlib
import re
import shlex
import unittest

import pytest

from agentrl_jax.service.controller import main as controller
from agentrl_jax.service.worker import main as worker
from tests.service.processes import ServiceProcess, free_port, running

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "protocol.md"


def blocks(language):
  """Returns the blocks of a language."""
  texts = re.findall(
    rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.M
  )
  return [block.replace("\\\n", " ") for block in texts]


class DocumentationTest(unittest.TestCase):
  def setUp(self):
    self.commands = [
      shlex.split(block)[1:]
      for block in blocks("")
      if block.startswith("python ")
    ]

  def test_commands_have_flags_that_exist(self):
    parsers = [controller._parser(), worker._parser(), worker._parser()]
    for (_, _, *flags), parser in zip(self.commands, parsers, strict=True):
      parser.parse_args(flags)

  @pytest.mark.slow
  def test_a_controller_with_two_workers(self):
    ports = {
      port: str(free_port()) for port in ("5020", "5021", "5022", "5023")
    }

    def moved(text):
      return re.sub(r"\b502\d\b", lambda match: ports[match[0]], text)

    with contextlib.ExitStack() as stack:
      for command in self.commands:
        process = stack.enter_context(running(*map(moved, command)))
        process.wait_for(" on http://")
      service = ServiceProcess()
      service.url = f"http://127.0.0.1:{ports['5020']}/api"
      service.wait_for_workers(2, "arithmetic")
      (example,) = blocks("python")
      printed = io.StringIO()
      with contextlib.redirect_stdout(printed):
        exec(compile(moved(example), str(DOCUMENT), "exec"), {})
    self.assertIn("Message(role='user'", printed.getvalue())
