"""Authentication of clients by a token."""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax import bearer_token
from agentrl_jax.rollout.server.errors import ApiError

# Paths for probes and Prometheus, which reveal no prompts or answers.
API_KEY = "x-api-key"  # the header of Anthropic's clients
OPEN = frozenset({"/health", "/ready", "/metrics"})


def read_token(path: str) -> str | None:
  """Reads a server's token; None for no path. Raises `ConfigError`."""
  return bearer_token.read_secret(path, "token_file=") or None


def key_of(request: web.Request) -> str:
  """Returns what a client gives as its API key; "" for none.

  OpenAI's clients send it as `Authorization: Bearer`, and Anthropic's as
  `x-api-key`.
  """
  scheme, _, sent = request.headers.get(bearer_token.HEADER, "").partition(" ")
  bearer = sent.strip() if scheme.lower() == "bearer" else ""
  return bearer or request.headers.get(API_KEY, "").strip()


def refuse_strangers(
  token: str | None, admits: Callable[[web.Request], bool] = lambda _: False
) -> Middleware:
  """Returns a middleware that requires the token; None admits every client.

  Requests that `admits` accepts need no token.
  """

  @web.middleware
  async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
    if token is not None and request.path not in OPEN:
      _check(request, token, admits)
    return await handler(request)

  return check


def _check(
  request: web.Request, token: str, admits: Callable[[web.Request], bool]
) -> None:
  sent = [request.headers.get(bearer_token.HEADER, "")]
  sent += [f"Bearer {key}" for key in request.headers.getall(API_KEY, ())]
  if not any(bearer_token.sends(h, token) for h in sent) and not admits(
    request
  ):
    raise ApiError(
      "this server requires its token: send it as 'Authorization: Bearer "
      "<token>' or 'x-api-key: <token>', as OpenAI's and Anthropic's clients "
      "do with their api_key",
      code="invalid_api_key",
      status=401,
      type="authentication_error",
    )
