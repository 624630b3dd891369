"""Reads the token that servers and clients share: the first line of a file.

The token is never given on a command line, which every user of the machine can
read.
"""

import pathlib

from agentrl_jax.errors import ConfigError

_REMEDY = "write one with: openssl rand -hex 32"


def first_line(path: str, key: str) -> str:
  """Reads the token, without surrounding white space.

  `key` is the flag or config key of the path. Raises `ConfigError` if the file
  cannot be read, or if an HTTP header cannot carry its first line.
  """
  try:
    content = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise ConfigError(
      f"{key}{path} cannot be read ({error.strerror}); {_REMEDY}"
    ) from error
  line = content.partition(b"\n")[0]
  return checked(
    line.decode("utf-8", "replace"), f"the first line of {key}{path}"
  )


def checked(text: str, source: str) -> str:
  """Strips a token. Raises `ConfigError` if no HTTP header can carry it."""
  token = text.strip()
  if not token or not token.isascii() or not token.isprintable():
    problem = "is empty" if not token else "has characters other than ASCII"
    raise ConfigError(
      f"{source} {problem}; a token is ASCII text on one line: {_REMEDY}"
    )
  return token
