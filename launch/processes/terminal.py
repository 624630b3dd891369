"""The terminal of a command: one door through which all its text goes.

Text of others (paths, names, messages of exceptions) is printed as it is: no
bracket is a style and no :name: a picture. What the terminal's encoding lacks
is written as an escape, since a missing character must not end a run.
"""

import io
import sys
from typing import Any

from rich.console import Console


def plain_console(**settings: Any) -> Console:
  """Returns a console of rich that reads nothing into the text it prints."""
  return Console(markup=False, emoji=False, highlight=False, **settings)


def print_what_can_be_printed() -> None:
  """Makes stdout and stderr escape the characters that they cannot encode."""
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")
