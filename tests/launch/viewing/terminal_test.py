"""A run in the terminal, whatever its policy wrote."""

import contextlib
import dataclasses
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest
from rich.console import Console

from agentrl_jax.data.record_file import write_groups
from agentrl_jax.data.records import Group
from launch import view
from launch.viewing.server import Viewer
from launch.viewing.terminal import follow, transcript, visible
from tests import programs
from tests.launch.viewing.a_run import a_member, make_run

# Sets the title, clears the screen, and asks the terminal to type.
HOSTILE = "\x1b]0;taken\x07 \x1b[2J \x9b6n \x90q \x08 \x7f [bold]"


class TerminalTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.run_folder = make_run(cls.folder / "a", updates=2)
    cls.viewer = Viewer(cls.folder / "a")

  def printed(self, renderable):
    out = io.StringIO()
    Console(file=out, width=999, force_terminal=True).print(renderable)
    return out.getvalue()

  def test_numbers_and_the_latest_trajectories(self):
    out = io.StringIO()
    follow(self.viewer, Console(file=out, width=120))
    text = out.getvalue()
    self.assertIn("a: update 2 of ", text)
    self.assertIn(
      "success of the latest 512 training episodes, sampled:  dbbench", text
    )
    self.assertIn("updates skipped: no signal 1", text)
    rows = self.viewer.listing().trajectories
    self.assertIn(f"{len(rows)} trajectories are kept", text)
    shown = [row for row in rows if row.id in text]
    self.assertEqual(shown, rows[: len(shown)])
    self.assertGreater(len(shown), 5)
    self.assertIn("task limit reached, cut", text)
    self.assertNotIn("completed, cut", text)

  def test_a_trajectory(self):
    text = self.printed(transcript(self.viewer, "000001.0.0"))
    page = self.viewer.trajectory("000001.0.0")
    for message in page.messages:
      for line in message.content.strip().splitlines():
        self.assertIn(line[:60], text)
      for call in message.calls:
        self.assertIn(call.name, text)
    self.assertIn("assistant, turn 1: ", text)
    cut = self.printed(transcript(self.viewer, "000001.0.2"))
    for said, count in ((text, 0), (cut, 1)):
      self.assertEqual(said.count("cut at a limit of tokens"), count)

  def test_text_of_a_policy_gives_the_terminal_no_command(self):
    member = a_member(0, 0, reward=1.0)
    written = [dict(message) for message in member.transcript]
    for message in written:
      if message["role"] in ("tool", "assistant"):
        message["content"] = HOSTILE
    member = dataclasses.replace(member, transcript=tuple(written))
    write_groups(
      self.run_folder.trajectories_of("rl", "sampled"),
      [Group("x", member.task, (member,))],
    )
    text = self.printed(transcript(self.viewer, "rl_sampled.0.0"))
    self.assertIn(visible(HOSTILE), text)
    for found in ("\x1b]", "\x1b[2J", "\x9b", "\x90", "\x08", "\x07", "\x7f"):
      self.assertNotIn(found, text)

  def test_lines_and_letters_stay_as_they_are(self):
    text = "a\n\tü → 漢 \N{NO-BREAK SPACE}"
    self.assertEqual(visible(text), text)

  def test_an_id_that_there_is_not(self):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
      view.main([str(self.folder / "a"), "--trajectory=x"])
    self.assertEqual(end.exception.code, 2)
    self.assertIn("take an id from the list", said.getvalue())

  @pytest.mark.slow
  def test_a_trajectory_in_a_file_has_no_colours(self):
    result = programs.run(
      "launch.view",
      str(self.folder / "a"),
      "--trajectory=000001.0.0",
      deadline_s=120,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn("assistant, turn 1: ", result.stdout)
    self.assertNotIn("\x1b", result.stdout)

  @pytest.mark.slow
  def test_ctrl_c_ends_it_without_a_traceback(self):
    program = (
      "import signal, threading, sys\n"
      "from rich.console import Console\n"
      "from launch import view\n"
      "view.CONSOLE = Console(force_terminal=True)\n"
      "threading.Timer(3, signal.raise_signal, [signal.SIGINT]).start()\n"
      f"view.main([{str(self.folder / 'a')!r}, '--terminal'])\n"
    )
    result = subprocess.run(
      [sys.executable, "-c", program],
      cwd=programs.ROOT,
      capture_output=True,
      text=True,
      timeout=120,
      check=False,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ""))
    self.assertIn("update 2 of", result.stdout)
