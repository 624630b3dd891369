"""Terminals as they were recorded, and as they are cut at any byte."""

import unittest

from environments.os_interaction.machines.terminal_output import (
  KEEP_BYTES,
  UNREADABLE,
  Hearing,
  readable,
)

PROMPT = b"\x1b[?2004h\x1b]0;root@46c3b9e6d592: ~\x07root@46c3b9e6d592:~# "
TAKEN = b"\x1b[?2004l\r"
ONE_LINE = b"echo hi\r\n" + TAKEN + b"hi\r\n" + PROMPT
# What AgentBench's worker shows of the second is on record.
SEVERAL = (
  b"echo -e 'Linux\r\n"
  + TAKEN
  + b"\x1b[?2004h> linux\r\n"
  + TAKEN
  + b"\x1b[?2004h> LINUX' > file1.txt\r\n"
  + TAKEN
  + PROMPT
)


def heard(data: bytes, *, num_lines: int, cuts=()) -> Hearing:
  hearing = Hearing(num_lines)
  for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
    hearing.feed(data[begin:end])
  return hearing


class HearingTest(unittest.TestCase):
  def test_one_line(self):
    hearing = heard(ONE_LINE, num_lines=1)
    self.assertTrue(hearing.is_done)
    self.assertEqual(hearing.text(), "hi\r\n")

  def test_lines_that_were_asked_for_are_shown_as_in_agentbench(self):
    hearing = heard(SEVERAL, num_lines=3)
    self.assertTrue(hearing.is_done)
    self.assertEqual(hearing.text(), "> linux\r\n\r> LINUX' > file1.txt\r\n")

  def test_cuts_change_nothing(self):
    for data, num_lines in ((ONE_LINE, 1), (SEVERAL, 3)):
      whole = heard(data, num_lines=num_lines)
      for cut in range(1, len(data)):
        hearing = heard(data, num_lines=num_lines, cuts=(cut,))
        self.assertTrue(hearing.is_done, cut)
        self.assertEqual(hearing.text(), whole.text())

  def test_it_is_not_done_before_the_last_line_was_taken(self):
    self.assertFalse(heard(ONE_LINE, num_lines=2).is_done)
    self.assertTrue(heard(ONE_LINE, num_lines=2).may_be_done)
    for end in range(len(ONE_LINE)):
      self.assertFalse(heard(ONE_LINE[:end], num_lines=1).is_done, end)

  def test_output_that_looks_like_a_prompt_is_no_prompt(self):
    data = b"x\r\n" + TAKEN + b"root@host:~# \r\n"
    self.assertFalse(heard(data, num_lines=1).is_done)

  def test_an_unfinished_command_is_told_apart(self):
    data = b"echo 'x\r\n" + TAKEN + b"\x1b[?2004h> "
    self.assertTrue(heard(data, num_lines=1).is_unfinished)
    self.assertFalse(heard(data, num_lines=2).is_unfinished)
    self.assertFalse(heard(data, num_lines=1).is_done)

  def test_a_question_is_told_apart(self):
    data = b"python3\r\n" + TAKEN + b">>> "
    self.assertTrue(heard(data, num_lines=1).may_be_asking)
    self.assertFalse(heard(ONE_LINE[:-20], num_lines=1).may_be_asking)

  def test_endless_output_is_not_kept(self):
    hearing = Hearing(1)
    for _ in range(100):
      hearing.feed(b"x" * 10_000)
    self.assertEqual(hearing.num_bytes, 1_000_000)
    self.assertLess(len(hearing.text()), KEEP_BYTES + 1)


class ReadableTest(unittest.TestCase):
  def test_colours_titles_and_bells_are_taken_out(self):
    data = TAKEN + b"\x1b[01;34mbin\x1b[0m \x1b]0;title\x07\x07dev\r\n"
    self.assertEqual(readable(data), "bin dev\r\n")

  def test_without_marks_the_first_line_is_the_echo(self):
    self.assertEqual(readable(b"ls\r\nbin\r\n"), "bin\r\n")

  def test_a_prompt_takes_its_line_along(self):
    data = TAKEN + b"out\r\n" + PROMPT + b"cat x | wc -l\r\n7\r\n"
    self.assertEqual(readable(data), "out\r\nwc -l\r\n7\r\n")

  def test_what_is_no_utf8_is_said_to_be_none(self):
    self.assertEqual(readable(TAKEN + b"\xff"), UNREADABLE)
    self.assertEqual(readable(TAKEN + "é".encode()), "é")

  def test_a_character_may_be_cut_only_at_the_end_of_a_part(self):
    data = TAKEN + "aé".encode()[:-1]
    self.assertEqual(readable(data, is_all=False), "a")
    self.assertEqual(readable(data), UNREADABLE)


if __name__ == "__main__":
  unittest.main()
