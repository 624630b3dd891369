"""Errors in the JSON of OpenAI's API, and of Anthropic's on its paths.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
{"type": "error", "error": {"type": ..., "message": ..., "code": ...}}
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  DeadlineExceeded,
  GrammarFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.http_requests import RequestRefused
from agentrl_jax.rollout.remote import wire

PREFIX = "/v1"  # of OpenAI's and Anthropic's routes
EPISODE_PREFIX = "/episodes"  # before it in URLs that name an episode

RETRY_AFTER_S = 1  # whole seconds, as the header needs

# HTTP status, type and code; the first class that fits decides.
_KINDS: Mapping[type[AgentRLError], tuple[int, str, str]] = {
  PromptTooLong: (400, "invalid_request_error", "context_length_exceeded"),
  wire.Draining: (503, "server_error", "draining"),
  wire.NotServing: (503, "server_error", "no_weights_yet"),
  ServerFull: (429, "rate_limit_error", "rate_limit_exceeded"),
  ConfigError: (400, "invalid_request_error", "invalid_value"),
  # The grammar that the caller gave has a dead end, or no end.
  GrammarFault: (400, "invalid_request_error", "grammar_failed"),
  DeadlineExceeded: (504, "server_error", "deadline_exceeded"),
  AgentRLError: (500, "server_error", "engine_failed"),
}


# Types of Anthropic's errors, by HTTP status.
_ANTHROPIC_TYPES = {
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  503: "overloaded_error",
  504: "timeout_error",
}


class ApiError(AgentRLError):
  """The refusal of a call; `param` names the field at fault."""

  def __init__(
    self,
    message: str,
    *,
    param: str | None = None,
    code: str = "invalid_value",
    status: int = 400,
    type: str = "invalid_request_error",
  ):
    super().__init__(message)
    self.param, self.code, self.status, self.type = param, code, status, type


def api_error(error: AgentRLError) -> ApiError:
  """Translates an error into the one that OpenAI's clients know."""
  if isinstance(error, ApiError):
    return error
  if isinstance(error, RequestRefused):
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return ApiError(str(error), code=error.code, status=error.status, type=kind)
  status, type, code = next(
    fields for kind, fields in _KINDS.items() if isinstance(error, kind)
  )
  return ApiError(str(error), code=code, status=status, type=type)


def error_body(error: AgentRLError) -> dict[str, Any]:
  """Returns the JSON of an error."""
  refusal = api_error(error)
  return {
    "error": {
      "message": str(refusal),
      "type": refusal.type,
      "param": refusal.param,
      "code": refusal.code,
    }
  }


def anthropic_error_body(error: AgentRLError) -> dict[str, Any]:
  """Returns the JSON of an error as Anthropic's clients read it."""
  refusal = api_error(error)
  default = "api_error" if refusal.status >= 500 else "invalid_request_error"
  # Clients know a prompt that is too long by the beginning of the message.
  is_long = refusal.code == _KINDS[PromptTooLong][2]
  return {
    "type": "error",
    "error": {
      "type": _ANTHROPIC_TYPES.get(refusal.status, default),
      "message": f"{'prompt is too long: ' if is_long else ''}{refusal}",
      "code": refusal.code,
    },
  }


def is_api_path(path: str) -> bool:
  """Returns whether a path is one of OpenAI's or Anthropic's routes."""
  return path.startswith((f"{PREFIX}/", f"{EPISODE_PREFIX}/"))


def error_response(error: AgentRLError, path: str) -> web.Response:
  """Returns the response to a call that failed."""
  refusal = api_error(error)
  headers = {}
  if refusal.status in (429, 503):
    headers["Retry-After"] = str(RETRY_AFTER_S)
  if refusal.status == 409:  # clients would repeat it without success
    headers["x-should-retry"] = "false"
  if refusal.status == 401:
    headers["WWW-Authenticate"] = "Bearer"
  is_anthropic = path.endswith(("/messages", "/messages/count_tokens"))
  body = anthropic_error_body if is_anthropic else error_body
  return web.json_response(
    body(refusal), status=refusal.status, headers=headers
  )


@web.middleware
async def explain_errors(
  request: web.Request, handler: Handler
) -> web.StreamResponse:
  """Answers errors of an API's routes in its JSON."""
  if not is_api_path(request.path):
    return await handler(request)
  try:
    return await handler(request)
  except AgentRLError as error:
    return error_response(error, request.path)
  except web.HTTPException as error:
    if error.status < 400:
      raise
    return error_response(
      ApiError(
        f"{request.method} {request.path}: {error.reason}",
        code="not_found" if error.status == 404 else "invalid_request",
        status=error.status,
      ),
      request.path,
    )
