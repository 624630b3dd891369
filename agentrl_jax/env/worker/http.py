"""HTTP transport of a worker: routes and headers."""

from aiohttp import web

from agentrl_jax.env.protocol import wire
from agentrl_jax.env.worker.api import GETTERS, Reply, WorkerApi
from agentrl_jax.http_requests import (
  MIB,
  BodyReader,
  HttpLimits,
  RequestRefused,
  read_json,
)

MAX_BODY = 64 * MIB
MAX_VALUES = 1 << 20


def application(api: WorkerApi, http: HttpLimits) -> web.Application:
  """Makes the routes; a shutdown frees every session."""

  bodies = BodyReader(http)

  async def handle(request: web.Request) -> web.Response:
    endpoint = request.match_info["endpoint"]
    method = "GET" if endpoint in GETTERS else "POST"
    if request.method != method:
      raise web.HTTPMethodNotAllowed(request.method, [method])
    return _response(await _ask(api, endpoint, request, bodies))

  async def shut_down(application: web.Application) -> None:
    await api.shut_down()

  application = web.Application()
  application.router.add_get("/api/{endpoint}", handle)
  application.router.add_post("/api/{endpoint}", handle)
  application.on_shutdown.append(shut_down)
  return application


async def _ask(
  api: WorkerApi, endpoint: str, request: web.Request, bodies: BodyReader
) -> Reply:
  """Answers a request; its body is a GET's query or a POST's JSON."""
  if request.method == "GET":
    return await api.answer(endpoint, dict(request.query))
  try:
    body = await read_json(
      bodies, request, max_values=MAX_VALUES, may_be_empty=True
    )
  except RequestRefused as error:
    return Reply(error.status, {"detail": str(error)})
  return await api.answer(endpoint, body)


def _response(reply: Reply) -> web.Response:
  headers = (
    {} if reply.session is None else {wire.SESSION_HEADER: str(reply.session)}
  )
  return web.json_response(reply.body, status=reply.code, headers=headers)
