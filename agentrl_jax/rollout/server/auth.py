"""Who may ask a server: everybody, or those who know its token.

The token stands in a file, never on a command line, where every user of the
machine could read it, and in no log.
"""

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.server.errors import ApiError
from agentrl_jax.rollout.token_file import first_line

# What probes and Prometheus ask; it tells nothing that was said.
OPEN = frozenset({"/health", "/ready", "/metrics"})
_LEAST = 16  # characters


def read_token(path: str) -> str | None:
  """The file's first line; None for no path. Raises `ConfigError`."""
  if not path:
    return None
  token = first_line(path, "the token file ")
  if len(token) < _LEAST:
    raise ConfigError(
      f"the first line of the token file {path} has {len(token)} characters; "
      f"{_LEAST} is the least. Write one with: openssl rand -hex 32"
    )
  return token


def refuse_strangers(token: str | None) -> Middleware:
  """A middleware that lets in who knows the token; None lets in everybody."""

  @web.middleware
  async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
    if token is not None and request.path not in OPEN:
      _check(request.headers.get("Authorization", ""), token)
    return await handler(request)

  return check


def _check(said: str, token: str) -> None:
  kind, _, found = said.partition(" ")
  # In a time that does not depend on where the two differ.
  # Bytes that are no text come as lone surrogates.
  sent = found.strip().encode("utf-8", "surrogateescape")
  same = hmac.compare_digest(sent, token.encode())
  if kind.lower() != "bearer" or not same:
    raise ApiError(
      "this server answers who knows its token: send it as 'Authorization: "
      "Bearer <token>', which OpenAI's clients do with their api_key",
      code="invalid_api_key",
      status=401,
      type="authentication_error",
    )
