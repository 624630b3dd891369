"""Bearer tokens, which servers and their clients share.

A token is the first line of a file, or an environment variable. It is never
given on a command line, which every user of the machine can read, and it is
never logged. In a request it is the header `Authorization: Bearer <token>`.
Needs no jax.
"""

import hmac
import os
import pathlib
from collections.abc import Mapping

from agentrl_jax.errors import ConfigError

HEADER = "Authorization"
MIN_LENGTH = 16  # characters of a token that a server requires

_REMEDY = "write one with: openssl rand -hex 32"


def read_token(source: str, key: str) -> str:
  """Reads a token, without surrounding white space; "" for no source.

  Args:
    source: a file, whose first line it is, or env:NAME, a variable.
    key: the flag or config key of the source, as "rollouts.token_file=".

  Raises:
    ConfigError: if it cannot be read, or if an HTTP header cannot carry it.
  """
  if not source:
    return ""
  kind, _, name = source.partition(":")
  if kind != "env":
    return _first_line(source, key)
  if name not in os.environ:
    raise ConfigError(
      f"{key}{source} cannot be read: this process has no such environment "
      "variable"
    )
  return _checked(os.environ[name], f"{key}{source}")


def read_secret(source: str, key: str) -> str:
  """Reads a token that a server requires: of `MIN_LENGTH` or more."""
  token = read_token(source, key)
  if source and len(token) < MIN_LENGTH:
    raise ConfigError(
      f"the token of {key}{source} has {len(token)} characters; at least "
      f"{MIN_LENGTH} are needed: {_REMEDY}"
    )
  return token


def read_key_of_url(source: str, url: str) -> str:
  """Reads the key of a server; `url` is "" for one that the run starts."""
  if source and not url:
    raise ConfigError(
      f"token_file={source} is sent to a server at `url`; one that the run "
      "starts gets its key by its command, as `env KEY=VALUE PROGRAM`"
    )
  return read_token(source, "token_file=")


def bearer(token: str) -> Mapping[str, str]:
  """Returns the header that sends a token; none without a token."""
  return {HEADER: f"Bearer {token}"} if token else {}


def sends(header: str, token: str) -> bool:
  """Returns whether the value of `Authorization` has the token.

  The time of the comparison does not depend on where the two differ.
  """
  scheme, _, sent = header.partition(" ")
  # aiohttp gives bytes that are no text as lone surrogates.
  sent_bytes = sent.strip().encode("utf-8", "surrogateescape")
  is_equal = hmac.compare_digest(sent_bytes, token.encode())
  return scheme.lower() == "bearer" and is_equal


def _first_line(path: str, key: str) -> str:
  """Reads the first line of a file. Raises `ConfigError`."""
  try:
    content = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise ConfigError(
      f"{key}{path} cannot be read ({error.strerror}); {_REMEDY}"
    ) from error
  line = content.partition(b"\n")[0]
  return _checked(
    line.decode("utf-8", "replace"), f"the first line of {key}{path}"
  )


def _checked(text: str, source: str) -> str:
  token = text.strip()
  if not token or not token.isascii() or not token.isprintable():
    problem = "is empty" if not token else "has characters other than ASCII"
    raise ConfigError(
      f"{source} {problem}; a token is ASCII text on one line: {_REMEDY}"
    )
  return token
