r"""Runs a worker, which serves one environment.

  python -m agentrl_jax.service.worker \
    --environment environments.arithmetic.environment:Arithmetic \
    --option num_tasks=100 --split test --port 5021 --concurrency 32

With `--controller http://host:5020/api` the controller reaches the worker at
its own port; with `--controller grpc://host:5021` the worker dials the
controller, which then asks over that stream.

`--token` names a file with the token that the controller expects of workers;
the worker then requires it of those who reach its own port, too.

SIGTERM and Ctrl-C free every session and then end the process; with
`--drain-s=300` open sessions get so many seconds to end by themselves, and a
second signal frees them.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web

from agentrl_jax import bearer_token, logs
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.loading import load_environment, parse_options
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.garbage import spare_collections
from agentrl_jax.http_requests import (
  SERVICE_LIMITS,
  HttpLimits,
  RequestRefused,
  explaining,
  listen,
  raise_file_limit,
  read_json,
)
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.worker.api import GETTERS, Reply, WorkerApi
from agentrl_jax.service.worker.heartbeat import (
  Answer,
  Controller,
  HttpController,
)
from agentrl_jax.service.worker.hosting import Host, HostLimits

_log = logging.getLogger(__name__)

DEFAULT_PORT = 5021
ANYWHERE = "0.0.0.0"
MAX_LISTED_INDICES = 10_000  # each heartbeat has them, every 8 s
GRPC = "grpc://"
TOKEN_FLAG, DRAIN_FLAG = "--token=", "--drain-s="
ONE_SIGNAL_S = 1.0  # signals that come within it are one
LAST_REPLIES_S = 2.0  # to arrive, after the last session has ended
MAX_VALUES = 1 << 20
NEEDS_TOKEN = (
  "this worker needs its token: send it as 'Authorization: Bearer <token>'"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig:
  """A worker's address, listed indices, and controller."""

  split: str = "test"
  bind: str = "127.0.0.1"
  port: int = DEFAULT_PORT  # 0: any free one
  num_indices: int = MAX_LISTED_INDICES  # listed indices of the split
  name: str | None = None  # of the task at the controller
  controller: str | None = None  # http://host:5020/api or grpc://host:5021
  address: str | None = None  # URL for the controller
  http: HttpLimits = SERVICE_LIMITS
  token: str = ""  # sent to the controller, and required; "": none
  drain_s: float = 0.0  # for open sessions to end after a signal

  def __post_init__(self) -> None:
    if not 0 <= self.drain_s < float("inf"):
      raise ConfigError(
        f"drain_s={self.drain_s} must be 0 or a number of seconds"
      )
    if not 0 <= self.port < 1 << 16:
      raise ConfigError(f"port={self.port} must lie between 0 and 65535")


@contextlib.asynccontextmanager
async def serve(
  environment: Environment,
  config: WorkerConfig,
  limits: HostLimits = HostLimits(),  # noqa: B008 - frozen
  *,
  host: Host | None = None,
) -> AsyncIterator[str]:
  """Serves until the context is left; yields http://host:port/api.

  Leaving frees every session and closes the port. `host` is the one to serve,
  if the caller looks at its sessions.
  """
  indices = environment.indices(config.split)[: config.num_indices]
  async with contextlib.AsyncExitStack() as stack:
    controller = None
    if config.controller is not None:
      http = await stack.enter_async_context(
        aiohttp.ClientSession(headers=bearer_token.bearer(config.token))
      )
      controller = _controller(http, config.controller, config.token)
    api = WorkerApi(
      host or Host(environment, limits),
      split=config.split,
      indices=indices,
      tell_cancelled=(
        None if controller is None else controller.notice_cancelled
      ),
    )
    runner = web.AppRunner(
      application(api, config.http, config.token),
      **config.http.runner_options(),
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    port = await listen(
      runner, config.bind, config.port, flags="--port or --bind"
    )
    if controller is not None:
      announcement = {
        "name": config.name or environment.name,
        "address": config.address or _address(config, port),
        "concurrency": limits.concurrency,
        "indices": list(indices),
      }
      await stack.enter_async_context(
        _beating(controller, announcement, api.answer)
      )
    yield f"http://{config.bind}:{port}/api"


def application(
  api: WorkerApi, http: HttpLimits, token: str = ""
) -> web.Application:
  """Makes the routes, for those with the token; a shutdown frees sessions."""

  async def handle(request: web.Request) -> web.Response:
    header = request.headers.get(bearer_token.HEADER, "")
    if token and not bearer_token.sends(header, token):
      return _response(Reply(401, {"detail": NEEDS_TOKEN}))
    endpoint = request.match_info["endpoint"]
    method = "GET" if endpoint in GETTERS else "POST"
    if request.method != method:
      raise web.HTTPMethodNotAllowed(request.method, [method])
    return _response(await _ask(api, endpoint, request, http))

  async def shut_down(application: web.Application) -> None:
    await api.shut_down()

  application = web.Application(middlewares=[explaining("detail")])
  application.router.add_get("/api/{endpoint}", handle)
  application.router.add_post("/api/{endpoint}", handle)
  application.on_shutdown.append(shut_down)
  return application


async def _ask(
  api: WorkerApi, endpoint: str, request: web.Request, http: HttpLimits
) -> Reply:
  """Answers a request; its body is a GET's query or a POST's JSON."""
  if request.method == "GET":
    return await api.answer(endpoint, dict(request.query))
  try:
    body = await read_json(
      request, http, max_values=MAX_VALUES, may_be_empty=True
    )
  except RequestRefused as error:
    return Reply(error.status, {"detail": str(error)})
  return await api.answer(endpoint, body)


def _response(reply: Reply) -> web.Response:
  headers = (
    {} if reply.session is None else {wire.SESSION_HEADER: str(reply.session)}
  )
  return web.json_response(reply.body, status=reply.code, headers=headers)


def _controller(
  http: aiohttp.ClientSession, url: str, token: str
) -> Controller:
  """Makes the connection to the controller that the address asks for."""
  if not url.startswith(GRPC):
    return HttpController(http, url)
  from agentrl_jax.service.worker import grpc  # grpcio is optional

  return grpc.StreamingController(
    url.removeprefix(GRPC).rstrip("/"), token=token
  )


def _address(config: WorkerConfig, port: int) -> str:
  """Guesses the URL at which others reach this worker."""
  host = socket.gethostname() if config.bind == ANYWHERE else config.bind
  return f"http://{host}:{port}/api"


@contextlib.asynccontextmanager
async def _beating(
  controller: Controller, announcement: Mapping[str, Any], answer: Answer
) -> AsyncIterator[None]:
  heart = asyncio.create_task(
    controller.keep_alive(announcement, answer), name="heartbeat"
  )
  try:
    yield
  finally:
    heart.cancel()
    await asyncio.wait([heart])
    if not heart.cancelled():
      heart.result()  # raises the error that stopped it


async def serve_until_stopped(
  environment: Environment, config: WorkerConfig, limits: HostLimits
) -> None:
  """Serves until SIGTERM or Ctrl-C, then frees and closes the environment.

  A second signal ends the wait of `config.drain_s` for open sessions.
  """
  raise_file_limit()
  host = Host(environment, limits)
  stopping = asyncio.Event()
  loop = asyncio.get_running_loop()
  for sign in (signal.SIGTERM, signal.SIGINT):
    loop.add_signal_handler(sign, stopping.set)
  try:
    async with serve(environment, config, limits, host=host) as url:
      spare_collections()
      _log.info(
        "serving %s (split %s, %d sessions) on %s",
        environment.name,
        config.split,
        limits.concurrency,
        url,
      )
      await stopping.wait()
      if config.drain_s and host.num_open:
        await _drain(host, config.drain_s, stopping)
      _log.info("stopping: every open session is freed")
  finally:
    await environment.close()


async def _drain(host: Host, within_s: float, stopping: asyncio.Event) -> None:
  """Waits until all sessions have ended, or for another signal."""
  _log.info(
    "stopping: %d sessions may end within %g s; a second signal frees them",
    host.num_open,
    within_s,
  )
  draining = asyncio.create_task(host.drain(), name="drain")
  # Ctrl-C in a terminal reaches a parent, too, which sends a signal of its own.
  await asyncio.wait([draining], timeout=min(ONE_SIGNAL_S, within_s))
  stopping.clear()
  hurried = asyncio.create_task(stopping.wait(), name="hurried")
  await asyncio.wait(
    [draining, hurried], timeout=within_s, return_when=asyncio.FIRST_COMPLETED
  )
  if draining.done():
    await asyncio.sleep(LAST_REPLIES_S)
  for task in (draining, hurried):
    task.cancel()


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m agentrl_jax.service.worker",
    description="Serves an environment over AgentRL's worker protocol.",
  )
  add = parser.add_argument
  add("--environment", required=True, metavar="MODULE:CLASS")
  add("--option", action="append", default=[], metavar="KEY=VALUE")
  add(
    "--default",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="an option, unless --option names it; for the entry points of images",
  )
  add("--split", default="test")
  add("--bind", default="127.0.0.1", help="0.0.0.0 lets other machines in")
  add("--port", type=int, default=DEFAULT_PORT)
  add(
    "--name",
    help="name of the task at the controller; by default the environment's",
  )
  add(
    "--controller",
    metavar="URL",
    help="http://host:5020/api, which dials the worker, or grpc://host:5021",
  )
  add("--address", metavar="URL", help="URL of this worker for the controller")
  add_token_and_drain(parser)
  for limit in dataclasses.fields(HostLimits):
    add(
      f"--{limit.name.replace('_', '-')}",
      type=type(limit.default),
      default=limit.default,
    )
  return parser


def add_token_and_drain(parser: argparse.ArgumentParser) -> None:
  """Adds --token and --drain-s to a worker's command line."""
  parser.add_argument(
    TOKEN_FLAG.rstrip("="),
    default="",
    metavar="FILE",
    help="a file with the token of workers, or env:NAME",
  )
  parser.add_argument(
    DRAIN_FLAG.rstrip("="),
    type=float,
    default=0.0,
    help="seconds for open sessions to end, after a signal to end the worker",
  )


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and serves."""
  parser = _parser()
  given = parser.parse_args(arguments)
  try:
    logs.set_up()
    options = parse_options(given.default) | parse_options(given.option)
    environment = load_environment(given.environment, options)
    config = WorkerConfig(
      split=given.split,
      bind=given.bind,
      port=given.port,
      name=given.name,
      controller=given.controller,
      address=given.address,
      token=bearer_token.read_secret(given.token, TOKEN_FLAG),
      drain_s=given.drain_s,
    )
    limits = HostLimits(
      **{f.name: getattr(given, f.name) for f in dataclasses.fields(HostLimits)}
    )
    asyncio.run(serve_until_stopped(environment, config, limits))
  except AgentRLError as error:
    parser.error(str(error))
