"""Parses the output of bash on a terminal: prompts, echoes, escape codes.

Nothing here waits or runs anything. A terminal carries more than a script's
output: bash's line editor echoes the typed lines, folds them at 80 columns,
asks for the rest of an unfinished command with "> ", and marks the begin and
end of editing. AgentBench's replies contain some of that, so it is kept where
they do.
"""

import codecs
import re

EDITING_ENDS = b"\x1b[?2004l"  # sent when the line editor accepts a line
KEEP_BYTES = 1 << 16  # of the output; a reply shows less than a thousand
TAIL_BYTES = 4096  # searched for a prompt

_PROMPT = re.compile(rb"\x1b\[\?2004h[^\n]*[#$] (?:\x1b\[K)?\Z")
_CONTINUATION_PROMPT = re.compile(rb"\x1b\[\?2004h> \Z")
_OTHER_PROMPT = re.compile(rb"@[^\r\n]*[#$] \Z")
_QUESTION = re.compile(rb"[#$>:?] \Z")

_ECHO = re.compile(rb"\A.*?\x1b\[\?2004l\r", re.DOTALL)
_ECHO_WITHOUT_MARKS = re.compile(rb"\A[^\n]*\n")
# AgentBench removes these from a reply, in this order. The first is its prompt
# and everything before it on the line since an escape.
_REMOVED = (
  re.compile(rb"\x1b.+@.+[#|$] "),
  re.compile(rb"\x1b\[[0-9;]*[a-zA-Z]"),
  re.compile(rb"\x1b][0-9]*;[^\x07]*\x07"),
  re.compile(rb"\x1b\[\?2004[hl]"),
  re.compile(rb"\x07"),
)

UNREADABLE = "OS Environment output cannot be decoded as UTF-8"


class TerminalOutput:
  """Output of a terminal since a script of `num_lines` was typed."""

  def __init__(self, num_lines: int):
    self.num_bytes = 0
    self._head = bytearray()
    self._tail = b""
    self._lines_left = num_lines

  def feed(self, data: bytes) -> None:
    """Appends newly read bytes."""
    self.num_bytes += len(data)
    self._head += data[: KEEP_BYTES - len(self._head)]
    seam = self._tail[1 - len(EDITING_ENDS) :] if self._tail else b""
    self._lines_left -= (seam + data).count(EDITING_ENDS)
    self._tail = (self._tail + data)[-TAIL_BYTES:]

  @property
  def is_done(self) -> bool:
    """True once the shell has accepted every line and shows its prompt."""
    return self._lines_left <= 0 and bool(_PROMPT.search(self._tail))

  @property
  def is_unfinished(self) -> bool:
    """True once the shell has accepted every line and asks for more lines."""
    return self._lines_left <= 0 and bool(
      _CONTINUATION_PROMPT.search(self._tail)
    )

  @property
  def may_be_done(self) -> bool:
    """True if a prompt is at the end, even if not all lines were accepted.

    A program of the script may have read lines. Only silence confirms it.
    """
    return bool(_PROMPT.search(self._tail) or _OTHER_PROMPT.search(self._tail))

  @property
  def may_wait_for_input(self) -> bool:
    """True if the end looks like a question. Only silence confirms it."""
    return bool(_QUESTION.search(self._tail))

  def text(self) -> str:
    """Returns the reply that AgentBench shows for this output."""
    return reply_text(
      bytes(self._head), is_complete=self.num_bytes <= KEEP_BYTES
    )


def reply_text(data: bytes, *, is_complete: bool = True) -> str:
  """Removes the first echoed line, prompts and escape codes.

  Unless `data` is complete, its last character may be cut in two.
  """
  data, num_echoes = _ECHO.subn(b"", data, count=1)
  if not num_echoes:
    data = _ECHO_WITHOUT_MARKS.sub(b"", data, count=1)
  for pattern in _REMOVED:
    data = pattern.sub(b"", data)
  try:
    return codecs.getincrementaldecoder("utf-8")().decode(data, is_complete)
  except UnicodeDecodeError:
    return UNREADABLE
