r"""Runs a worker whose sessions are played in containers on this host.

  python -m agentrl_jax.service.docker.worker --containers=4 \
    --spec="{'image': 'agentrl_jax/dbbench', 'concurrency': 64, ...}" \
    --controller=grpc://10.0.0.2:5021

Only this process reaches the controller: the containers keep the network that
`ContainerSpec` gives them, by default none.
"""

import argparse
import ast
import asyncio
from collections.abc import Sequence

from agentrl_jax import logs
from agentrl_jax.bearer_token import read_secret
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.service.docker.pool import container_pool
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import (
  TOKEN_FLAG,
  WorkerConfig,
  add_token_and_drain,
  serve_until_stopped,
)


async def _serve(
  spec: ContainerSpec, num_containers: int, config: WorkerConfig
) -> None:
  limits = HostLimits(concurrency=num_containers * spec.concurrency)
  with engines.connect() as engine:
    async with container_pool(
      engine, spec, num_containers=num_containers
    ) as pool:
      await serve_until_stopped(pool, config, limits)


def read_spec(text: str) -> ContainerSpec:
  """Reads the fields of a spec, written as a Python dict.

  Raises `ConfigError` for anything else.
  """
  try:
    return ContainerSpec(**ast.literal_eval(text))
  except (SyntaxError, TypeError, ValueError) as error:
    raise ConfigError(
      f"--spec={text} must be a dict of ContainerSpec's fields: {error}"
    ) from error


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and serves until SIGTERM or Ctrl-C."""
  parser = argparse.ArgumentParser(
    prog="python -m agentrl_jax.service.docker.worker",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("--spec", required=True, metavar="DICT")
  parser.add_argument("--containers", type=int, default=1)
  parser.add_argument("--split", default="test", help="whose tasks are listed")
  parser.add_argument("--name", help="name of the task at the controller")
  parser.add_argument("--controller", metavar="URL")
  parser.add_argument("--port", type=int, default=0, help="0: any free one")
  add_token_and_drain(parser)
  given = parser.parse_args(arguments)
  try:
    logs.set_up()
    config = WorkerConfig(
      split=given.split,
      port=given.port,
      name=given.name,
      controller=given.controller,
      token=read_secret(given.token, TOKEN_FLAG),
      drain_s=given.drain_s,
    )
    asyncio.run(_serve(read_spec(given.spec), given.containers, config))
  except AgentRLError as error:
    parser.error(str(error))


if __name__ == "__main__":
  main()
