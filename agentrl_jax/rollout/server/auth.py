"""Authentication of clients by a token.

The token is read from a file, since every user of the machine can read command
lines, and it is never logged.
"""

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.server.errors import ApiError
from agentrl_jax.rollout.token_file import first_line

# Paths for probes and Prometheus, which reveal no prompts or answers.
OPEN = frozenset({"/health", "/ready", "/metrics"})
_MIN_LENGTH = 16  # characters


def read_token(path: str) -> str | None:
  """Reads the file's first line; None for no path. Raises `ConfigError`."""
  if not path:
    return None
  token = first_line(path, "the token file ")
  if len(token) < _MIN_LENGTH:
    raise ConfigError(
      f"the first line of the token file {path} has {len(token)} characters; "
      f"at least {_MIN_LENGTH} are needed. Write one with: openssl rand -hex 32"
    )
  return token


def refuse_strangers(token: str | None) -> Middleware:
  """Returns a middleware that requires the token; None admits every client."""

  @web.middleware
  async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
    if token is not None and request.path not in OPEN:
      _check(request.headers.get("Authorization", ""), token)
    return await handler(request)

  return check


def _check(header: str, token: str) -> None:
  scheme, _, sent = header.partition(" ")
  # aiohttp gives bytes that are no text as lone surrogates.
  sent_bytes = sent.strip().encode("utf-8", "surrogateescape")
  # The time of the comparison does not depend on where the two differ.
  is_equal = hmac.compare_digest(sent_bytes, token.encode())
  if scheme.lower() != "bearer" or not is_equal:
    raise ApiError(
      "this server requires its token: send it as 'Authorization: Bearer "
      "<token>', which OpenAI's clients do with their api_key",
      code="invalid_api_key",
      status=401,
      type="authentication_error",
    )
