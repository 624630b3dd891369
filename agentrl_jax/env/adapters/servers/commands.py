"""Commands that start others' servers, and the text of their tools' replies."""

import json
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.env.adapters.servers import bounded_process
from agentrl_jax.errors import ConfigError


def found_program(command: str) -> list[str]:
  """Splits a command, and finds its program beside this Python or on PATH.

  Raises `ConfigError` if there is none.
  """
  try:
    program, *arguments = shlex.split(command)
  except ValueError as error:
    raise ConfigError(
      f"command={command!r} is no command and its arguments: {error}"
    ) from error
  beside = str(pathlib.Path(sys.executable).parent)
  path = shutil.which(program, path=f"{beside}:{os.environ.get('PATH', '')}")
  if path is None:
    raise ConfigError(
      f"command={command!r}: there is no program {program!r} beside "
      f"{sys.executable} nor on PATH; install it, or give its path"
    )
  return [path, *arguments]


def bounded(
  argv: Sequence[str], *, max_line: int, last: str = "", **values: str
) -> tuple[str, list[str]]:
  """Returns program and arguments that run a command in `bounded_process`.

  Words in braces that are among `values` are replaced.
  """
  words = [str(max_line), last, *argv]
  for name, value in values.items():
    words = [word.replace(f"{{{name}}}", value) for word in words]
  return sys.executable, ["-IS", bounded_process.__file__, *words]


def last_words(said: str) -> str:
  """Returns the end of a fault's sentence about a process that said this."""
  text = " ".join(said.split())
  return f"; it wrote: {text[-300:]}" if text else ""


def text_of_result(result: Mapping[str, Any]) -> str:
  """Returns the text of an MCP tool's result; of other content its kind."""
  texts = [_text_of_part(part) for part in result.get("content") or ()]
  structured = result.get("structuredContent")
  return "\n".join(texts) or (
    "" if structured is None else json.dumps(structured)
  )


def _text_of_part(part: Mapping[str, Any]) -> str:
  resource = part.get("resource") or {}
  text = part.get("text", resource.get("text"))
  if isinstance(text, str):
    return text
  kind = part.get("mimeType") or resource.get("mimeType")
  address = part.get("uri") or resource.get("uri")
  return f"[{' '.join(str(p) for p in (part['type'], kind, address) if p)}]"


def cut(text: str, limit: int) -> str:
  """Returns the text, or its first `limit` characters and how many are cut."""
  left = len(text) - limit
  if left <= 0:
    return text
  return f"{text[:limit]}\n[{left:,} more characters are cut]"
