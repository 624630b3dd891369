"""Runs AgentRL's controller, between clients and environment workers.

  python -m agentrl_jax.service.controller --port 5020 --grpc-port 5021

Clients, and workers that have a port, use HTTP at `--port`; workers that open
streams use gRPC at `--grpc-port`. SIGTERM and Ctrl-C end the process; sessions
stay with their workers, and the next controller takes them over.

Other machines need tokens, of clients, workers and operators, each a file that
`openssl rand -hex 32` writes: --client-token, --worker-token, --operator-token.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
from collections.abc import AsyncIterator, Sequence

import aiohttp
from aiohttp import web

from agentrl_jax import logs
from agentrl_jax.bearer_token import bearer, read_secret
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.garbage import spare_collections
from agentrl_jax.http_requests import (
  SERVICE_LIMITS,
  HttpLimits,
  connection_limit,
  listen,
  raise_file_limit,
)
from agentrl_jax.service.controller.access import (
  Access,
  Role,
  WorkerHosts,
  is_loopback,
)
from agentrl_jax.service.controller.capacity import MAX_WAITING
from agentrl_jax.service.controller.dispatcher import Dispatcher, dispatching
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.controller.routes import ControllerApi
from agentrl_jax.service.protocol.link import HttpLink, WorkerLink

_log = logging.getLogger(__name__)

DEFAULT_PORT = 5020
GRPC = "grpc://"
NO_GRPC = -1
_STOP_S = 1.0  # for requests in flight at the end
# Shorter than any server's, so that no request meets a connection being closed.
_KEEPALIVE_S = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceConfig:
  """Addresses to listen on, who may call, and limits of HTTP requests."""

  bind: str = "127.0.0.1"
  port: int = DEFAULT_PORT  # of HTTP; 0: any free one
  grpc_port: int = NO_GRPC  # 0: any free one, -1: no gRPC
  http: HttpLimits = SERVICE_LIMITS
  access: Access = Access()
  worker_hosts: WorkerHosts = WorkerHosts()
  allows_anyone: bool = False  # without tokens, beyond this machine
  max_waiting: int = MAX_WAITING  # requests for a place of one task

  def __post_init__(self) -> None:
    is_open = self.access.is_open and not self.allows_anyone
    if is_open and not is_loopback(self.bind):
      raise ConfigError(
        f"bind={self.bind} lets other machines in, and without tokens they may "
        "do everything: give --client-token, --worker-token and "
        "--operator-token, or, in a network of machines that you trust, "
        "--allow-anyone"
      )
    require_positive(max_waiting=self.max_waiting)
    for name, least in (("port", 0), ("grpc_port", NO_GRPC)):
      if not least <= getattr(self, name) < 1 << 16:
        raise ConfigError(
          f"{name}={getattr(self, name)} must lie between {least} and 65535"
        )


@dataclasses.dataclass(frozen=True)
class Addresses:
  """Addresses of a running controller."""

  http: str  # http://host:5020/api
  grpc: str | None  # grpc://host:5021


@contextlib.asynccontextmanager
async def serve(
  config: ServiceConfig,
  timers: Timers = Timers(),  # noqa: B008 - frozen
) -> AsyncIterator[Addresses]:
  """Serves until the context is left."""
  async with contextlib.AsyncExitStack() as stack:
    connector = aiohttp.TCPConnector(
      limit=connection_limit(), keepalive_timeout=_KEEPALIVE_S
    )
    http = await stack.enter_async_context(
      aiohttp.ClientSession(
        connector=connector, headers=bearer(config.access.worker)
      )
    )
    dispatcher, grpc_address = await _dispatch(stack, http, config, timers)
    runner = web.AppRunner(
      ControllerApi(
        dispatcher, config.http, config.access, config.worker_hosts
      ).application(),
      handler_cancellation=True,  # a client that disconnects leaves no session
      shutdown_timeout=_STOP_S,
      **config.http.runner_options(),
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    port = await listen(
      runner, config.bind, config.port, flags="--port or --bind"
    )
    stack.callback(dispatcher.stop)  # before requests are cut off
    yield Addresses(f"http://{config.bind}:{port}/api", grpc_address)


async def _dispatch(
  stack: contextlib.AsyncExitStack,
  http: aiohttp.ClientSession,
  config: ServiceConfig,
  timers: Timers,
) -> tuple[Dispatcher, str | None]:
  """Starts the dispatcher, with gRPC if the config has a port for it."""

  def connect(address: str) -> WorkerLink:
    return HttpLink(http, address, follows_redirects=False, limits=config.http)

  if config.grpc_port == NO_GRPC:
    dispatcher = await stack.enter_async_context(
      dispatching(timers, connect, max_waiting=config.max_waiting)
    )
    return dispatcher, None
  # Imported here, because grpc is an optional dependency.
  from agentrl_jax.service.controller.worker_streams import WorkerStreams

  streams = WorkerStreams(
    on_heartbeat=lambda announcement: dispatcher.receive_heartbeat(
      announcement
    ),
    on_lost=lambda address: dispatcher.lose_worker(address),
    on_freed=lambda session, sender: dispatcher.end_session(session, sender),
    reconnect_s=timers.reconnect_s,
    access=config.access,
    max_answer=config.http.max_body,
  )

  def connect_either(address: str) -> WorkerLink:
    if address.startswith(GRPC):
      return streams.link(address)
    return connect(address)

  dispatcher = await stack.enter_async_context(
    dispatching(timers, connect_either, max_waiting=config.max_waiting)
  )
  port = await stack.enter_async_context(
    streams.listening(config.bind, config.grpc_port)
  )
  return dispatcher, f"{GRPC}{config.bind}:{port}"


async def _run(config: ServiceConfig, timers: Timers) -> None:
  raise_file_limit()
  stopping = asyncio.Event()
  loop = asyncio.get_running_loop()
  for number in (signal.SIGTERM, signal.SIGINT):
    loop.add_signal_handler(number, stopping.set)
  async with serve(config, timers) as addresses:
    spare_collections()
    listed = filter(None, (addresses.http, addresses.grpc))
    _log.info("controller on %s", " and ".join(listed))
    await stopping.wait()
    _log.info("stopping: sessions stay with their workers")


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m agentrl_jax.service.controller",
    description="Serves AgentRL's controller protocol.",
  )
  add = parser.add_argument
  add("--bind", default="127.0.0.1", help="0.0.0.0 lets other machines in")
  add("--port", type=int, default=DEFAULT_PORT)
  add(
    "--grpc-port",
    type=int,
    default=NO_GRPC,
    help="where workers dial; none if it is not given",
  )
  for role in Role:
    add(
      f"--{role.value}-token",
      default="",
      metavar="FILE",
      help=f"a file with the token of {role.value}s, or env:NAME",
    )
  add(
    "--allow-anyone",
    action="store_true",
    help="no tokens, though other machines reach --bind",
  )
  add(
    "--worker-hosts",
    default="",
    metavar="HOSTS",
    help="where workers may be that another machine announces: names as "
    "gpu-*.internal and networks as 10.0.0.0/8, with commas between them",
  )
  add(
    "--max-waiting",
    type=int,
    default=MAX_WAITING,
    help="requests that may wait for a place of one task; further ones are "
    "answered 429",
  )
  for timer in dataclasses.fields(Timers):
    add(f"--{timer.name.replace('_', '-')}", type=float, default=timer.default)
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = _parser()
  given = vars(parser.parse_args(arguments))
  try:
    logs.set_up()
    timers = Timers(
      **{f.name: given[f.name] for f in dataclasses.fields(Timers)}
    )
    config = ServiceConfig(
      bind=given["bind"],
      port=given["port"],
      grpc_port=given["grpc_port"],
      access=Access(
        **{
          role.value: read_secret(
            given[f"{role.value}_token"], f"--{role.value}-token="
          )
          for role in Role
        }
      ),
      worker_hosts=WorkerHosts(
        tuple(filter(None, given["worker_hosts"].split(",")))
      ),
      allows_anyone=given["allow_anyone"],
      max_waiting=given["max_waiting"],
    )
    asyncio.run(_run(config, timers))
  except AgentRLError as error:
    parser.error(str(error))
