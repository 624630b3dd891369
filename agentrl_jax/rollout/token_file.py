"""A secret that servers and their clients share: the first line of a file.

It stands in a file, never on a command line, where every user of the machine
could read it. Needs neither jax nor HTTP.
"""

import pathlib

from agentrl_jax.errors import ConfigError

_REMEDY = "write one with: openssl rand -hex 32"


def first_line(path: str, key: str) -> str:
  """Reads the token, without the white space around it.

  `key` names what the path comes from. Raises `ConfigError` if the file cannot
  be read, or if its first line is no token that an HTTP header can carry.
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
    found = "is empty" if not token else "has other signs than ASCII's"
    raise ConfigError(
      f"{source} {found}; a token is ASCII text on one line: {_REMEDY}"
    )
  return token
