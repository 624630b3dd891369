"""Output of recorded terminals is parsed however it is cut."""

import unittest

from environments.os_interaction.machines.terminal_output import (
  KEEP_BYTES,
  UNREADABLE,
  TerminalOutput,
  reply_text,
)

PROMPT = b"\x1b[?2004h\x1b]0;root@46c3b9e6d592: ~\x07root@46c3b9e6d592:~# "
ACCEPTED = b"\x1b[?2004l\r"
ONE_LINE = b"echo hi\r\n" + ACCEPTED + b"hi\r\n" + PROMPT
# AgentBench's reply to it is on record.
SEVERAL = (
  b"echo -e 'Linux\r\n"
  + ACCEPTED
  + b"\x1b[?2004h> linux\r\n"
  + ACCEPTED
  + b"\x1b[?2004h> LINUX' > file1.txt\r\n"
  + ACCEPTED
  + PROMPT
)


def output_of(data: bytes, *, num_lines: int, cuts=()) -> TerminalOutput:
  output = TerminalOutput(num_lines)
  for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
    output.feed(data[begin:end])
  return output


class TerminalOutputTest(unittest.TestCase):
  def test_one_line(self):
    output = output_of(ONE_LINE, num_lines=1)
    self.assertTrue(output.is_done)
    self.assertEqual(output.text(), "hi\r\n")

  def test_continuation_lines_are_shown_as_in_agentbench(self):
    output = output_of(SEVERAL, num_lines=3)
    self.assertTrue(output.is_done)
    self.assertEqual(output.text(), "> linux\r\n\r> LINUX' > file1.txt\r\n")

  def test_cuts_change_nothing(self):
    for data, num_lines in ((ONE_LINE, 1), (SEVERAL, 3)):
      whole = output_of(data, num_lines=num_lines)
      for cut in range(1, len(data)):
        output = output_of(data, num_lines=num_lines, cuts=(cut,))
        self.assertTrue(output.is_done, cut)
        self.assertEqual(output.text(), whole.text())

  def test_output_is_not_done_before_the_last_line_is_accepted(self):
    self.assertFalse(output_of(ONE_LINE, num_lines=2).is_done)
    self.assertTrue(output_of(ONE_LINE, num_lines=2).may_be_done)
    for end in range(len(ONE_LINE)):
      self.assertFalse(output_of(ONE_LINE[:end], num_lines=1).is_done, end)

  def test_output_that_looks_like_a_prompt_is_no_prompt(self):
    data = b"x\r\n" + ACCEPTED + b"root@host:~# \r\n"
    self.assertFalse(output_of(data, num_lines=1).is_done)

  def test_an_unfinished_command(self):
    data = b"echo 'x\r\n" + ACCEPTED + b"\x1b[?2004h> "
    self.assertTrue(output_of(data, num_lines=1).is_unfinished)
    self.assertFalse(output_of(data, num_lines=2).is_unfinished)
    self.assertFalse(output_of(data, num_lines=1).is_done)

  def test_a_question(self):
    data = b"python3\r\n" + ACCEPTED + b">>> "
    self.assertTrue(output_of(data, num_lines=1).may_wait_for_input)
    self.assertFalse(output_of(ONE_LINE[:-20], num_lines=1).may_wait_for_input)

  def test_endless_output_is_not_kept(self):
    output = TerminalOutput(1)
    for _ in range(100):
      output.feed(b"x" * 10_000)
    self.assertEqual(output.num_bytes, 1_000_000)
    self.assertLess(len(output.text()), KEEP_BYTES + 1)


class ReplyTextTest(unittest.TestCase):
  def test_colours_titles_and_bells_are_removed(self):
    data = ACCEPTED + b"\x1b[01;34mbin\x1b[0m \x1b]0;title\x07\x07dev\r\n"
    self.assertEqual(reply_text(data), "bin dev\r\n")

  def test_without_marks_the_first_line_is_the_echo(self):
    self.assertEqual(reply_text(b"ls\r\nbin\r\n"), "bin\r\n")

  def test_a_prompt_is_removed_with_its_line(self):
    data = ACCEPTED + b"out\r\n" + PROMPT + b"cat x | wc -l\r\n7\r\n"
    self.assertEqual(reply_text(data), "out\r\nwc -l\r\n7\r\n")

  def test_bytes_that_are_not_utf8(self):
    self.assertEqual(reply_text(ACCEPTED + b"\xff"), UNREADABLE)
    self.assertEqual(reply_text(ACCEPTED + "é".encode()), "é")

  def test_a_character_may_be_cut_at_the_end_of_incomplete_output(self):
    data = ACCEPTED + "aé".encode()[:-1]
    self.assertEqual(reply_text(data, is_complete=False), "a")
    self.assertEqual(reply_text(data), UNREADABLE)
