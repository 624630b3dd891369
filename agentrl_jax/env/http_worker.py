"""The HTTP face of a worker: routes and headers, and nothing else."""

import json

from aiohttp import web

from agentrl_jax.env import wire
from agentrl_jax.env.worker_api import GETTERS, Reply, WorkerApi

MAX_REQUEST_BYTES = 64 << 20


def application(api: WorkerApi) -> web.Application:
  """The routes, ready to be run; shutting it down frees every session."""

  async def handle(request: web.Request) -> web.Response:
    endpoint = request.match_info["endpoint"]
    method = "GET" if endpoint in GETTERS else "POST"
    if request.method != method:
      raise web.HTTPMethodNotAllowed(request.method, [method])
    return _response(await _ask(api, endpoint, request))

  async def shut_down(application: web.Application) -> None:
    await api.shut_down()

  application = web.Application(client_max_size=MAX_REQUEST_BYTES)
  application.router.add_get("/api/{endpoint}", handle)
  application.router.add_post("/api/{endpoint}", handle)
  application.on_shutdown.append(shut_down)
  return application


async def _ask(api: WorkerApi, endpoint: str, request: web.Request) -> Reply:
  """The body is the query of a GET, and the JSON of a POST, if it has one."""
  if request.method == "GET":
    return await api.answer(endpoint, dict(request.query))
  text = await request.read()
  try:
    body = json.loads(text) if text else None
  except ValueError as error:
    return Reply(400, {"detail": f"the body is no JSON: {error}"})
  return await api.answer(endpoint, body)


def _response(reply: Reply) -> web.Response:
  headers = (
    {} if reply.session is None else {wire.SESSION_HEADER: str(reply.session)}
  )
  return web.json_response(reply.body, status=reply.code, headers=headers)
