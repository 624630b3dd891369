"""Following a shell on a terminal: when it is done, and what it has said.

Nothing here waits or runs anything. What a terminal carries is more than the
output: bash's line editor repeats what is typed, folds it at 80 columns, asks
for the rest of an unfinished command with "> ", and marks where editing begins
and ends. AgentBench's replies hold some of that, so it is kept where they do.
"""

import codecs
import re

EDITING_ENDS = b"\x1b[?2004l"  # as a line is taken by the line editor
KEEP_BYTES = 1 << 16  # of the output; a reply shows less than a thousand
TAIL_BYTES = 4096  # in which a prompt is looked for

_PROMPT = re.compile(rb"\x1b\[\?2004h[^\n]*[#$] (?:\x1b\[K)?\Z")
_UNFINISHED = re.compile(rb"\x1b\[\?2004h> \Z")
_PROMPT_OF_ANOTHER = re.compile(rb"@[^\r\n]*[#$] \Z")
_QUESTION = re.compile(rb"[#$>:?] \Z")

_ECHO = re.compile(rb"\A.*?\x1b\[\?2004l\r", re.DOTALL)
_ECHO_WITHOUT_MARKS = re.compile(rb"\A[^\n]*\n")
# What AgentBench takes out of a reply, in this order. The first is its prompt,
# with all that stands before it on the line since an escape.
_TAKEN_OUT = (
  re.compile(rb"\x1b.+@.+[#|$] "),
  re.compile(rb"\x1b\[[0-9;]*[a-zA-Z]"),
  re.compile(rb"\x1b][0-9]*;[^\x07]*\x07"),
  re.compile(rb"\x1b\[\?2004[hl]"),
  re.compile(rb"\x07"),
)

UNREADABLE = "OS Environment output cannot be decoded as UTF-8"


class Hearing:
  """What a terminal has said since a script of `num_lines` was typed."""

  def __init__(self, num_lines: int):
    self.num_bytes = 0
    self._head = bytearray()
    self._tail = b""
    self._lines_left = num_lines

  def feed(self, data: bytes) -> None:
    """Takes in what has just been read."""
    self.num_bytes += len(data)
    self._head += data[: KEEP_BYTES - len(self._head)]
    seam = self._tail[1 - len(EDITING_ENDS) :] if self._tail else b""
    self._lines_left -= (seam + data).count(EDITING_ENDS)
    self._tail = (self._tail + data)[-TAIL_BYTES:]

  @property
  def is_done(self) -> bool:
    """Whether the shell has taken every line and asks for the next."""
    return self._lines_left <= 0 and bool(_PROMPT.search(self._tail))

  @property
  def is_unfinished(self) -> bool:
    """Whether the shell has taken every line and wants more of them."""
    return self._lines_left <= 0 and bool(_UNFINISHED.search(self._tail))

  @property
  def may_be_done(self) -> bool:
    """Whether it is done if nothing follows: a program may have read lines."""
    return bool(
      _PROMPT.search(self._tail) or _PROMPT_OF_ANOTHER.search(self._tail)
    )

  @property
  def may_be_asking(self) -> bool:
    """Whether a program waits for an answer, if nothing follows."""
    return bool(_QUESTION.search(self._tail))

  def text(self) -> str:
    """What of it is shown, as AgentBench shows it."""
    return readable(bytes(self._head), is_all=self.num_bytes <= KEEP_BYTES)


def readable(heard: bytes, *, is_all: bool = True) -> str:
  """The reply in what was heard: without the first line typed, and prompts.

  Unless it `is_all`, the last character may have been cut in two.
  """
  heard, num_found = _ECHO.subn(b"", heard, count=1)
  if not num_found:
    heard = _ECHO_WITHOUT_MARKS.sub(b"", heard, count=1)
  for pattern in _TAKEN_OUT:
    heard = pattern.sub(b"", heard)
  try:
    return codecs.getincrementaldecoder("utf-8")().decode(heard, is_all)
  except UnicodeDecodeError:
    return UNREADABLE
