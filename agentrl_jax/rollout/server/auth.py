"""Authentication of clients by a token."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax import bearer_token
from agentrl_jax.rollout.server.errors import ApiError

# Paths for probes and Prometheus, which reveal no prompts or answers.
OPEN = frozenset({"/health", "/ready", "/metrics"})


def read_token(path: str) -> str | None:
  """Reads a server's token; None for no path. Raises `ConfigError`."""
  return bearer_token.read_secret(path, "token_file=") or None


def refuse_strangers(token: str | None) -> Middleware:
  """Returns a middleware that requires the token; None admits every client."""

  @web.middleware
  async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
    if token is not None and request.path not in OPEN:
      _check(request.headers.get(bearer_token.HEADER, ""), token)
    return await handler(request)

  return check


def _check(header: str, token: str) -> None:
  if not bearer_token.sends(header, token):
    raise ApiError(
      "this server requires its token: send it as 'Authorization: Bearer "
      "<token>', which OpenAI's clients do with their api_key",
      code="invalid_api_key",
      status=401,
      type="authentication_error",
    )
