"""Errors in the JSON of OpenAI's API.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
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

PREFIX = "/v1"  # of OpenAI's routes

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


def error_response(error: AgentRLError) -> web.Response:
  """Returns the response to a call that failed."""
  refusal = api_error(error)
  headers = {}
  if refusal.status in (429, 503):
    headers["Retry-After"] = str(RETRY_AFTER_S)
  if refusal.status == 409:  # clients would repeat it without success
    headers["x-should-retry"] = "false"
  if refusal.status == 401:
    headers["WWW-Authenticate"] = "Bearer"
  return web.json_response(
    error_body(refusal), status=refusal.status, headers=headers
  )


@web.middleware
async def explain_errors(
  request: web.Request, handler: Handler
) -> web.StreamResponse:
  """Answers errors of OpenAI's routes in OpenAI's JSON."""
  if not request.path.startswith(f"{PREFIX}/"):
    return await handler(request)
  try:
    return await handler(request)
  except AgentRLError as error:
    return error_response(error)
  except web.HTTPException as error:
    if error.status < 400:
      raise
    return error_response(
      ApiError(
        f"{request.method} {request.path}: {error.reason}",
        code="not_found" if error.status == 404 else "invalid_request",
        status=error.status,
      )
    )
