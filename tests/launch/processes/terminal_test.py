"""Tests of `launch.processes.terminal`: no text of others can end a command."""

import io
import sys
from unittest import mock

from absl.testing import parameterized
from rich.table import Table

from launch.processes.terminal import plain_console, print_what_can_be_printed

HOSTILE = "runs/[/]a[bold]b[/red] :warning: [link=x] 12%"


class TerminalTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_text_of_others_is_printed_as_it_is(self, in_table):
    out = io.StringIO()
    printed = HOSTILE
    if in_table:
      printed = Table(HOSTILE, title=HOSTILE)
      printed.add_row(HOSTILE)
    plain_console(file=out, width=200).print(printed)
    self.assertEqual(out.getvalue().count(HOSTILE), 3 if in_table else 1)

  def test_what_an_encoding_lacks_is_escaped(self):
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    with mock.patch.object(sys, "stdout", stream):
      print_what_can_be_printed()
      plain_console(file=stream, width=80).print("3 – 4 °C … ▁▅ \ud83d")
    stream.flush()
    self.assertEqual(
      content.getvalue().decode("ascii").strip(),
      r"3 \u2013 4 \xb0C \u2026 \u2581\u2585 \ud83d",
    )
