"""Builds the image of an environment's worker from its Dockerfile.

  python -m agentrl_jax.env.images arithmetic --base debian:bookworm-slim

The build context is the repository, cut down by `.dockerignore`. Any base with
Python 3.11 or newer, or with an apt that has it, will do.
"""

import argparse
import logging
import pathlib
from collections.abc import Sequence

import docker
import docker.errors

from agentrl_jax.env import engine as engines
from agentrl_jax.errors import AgentRLError, ConfigError

_log = logging.getLogger(__name__)

ROOT = pathlib.Path(__file__).parents[2]
_LAST_LINES = 30  # of a failed build's log that go into the error


def build_image(
  engine: docker.DockerClient,
  name: str,
  *,
  base: str | None = None,
  tag: str | None = None,
  root: pathlib.Path = ROOT,
) -> str:
  """Builds environments/<name>/Dockerfile; its tag, agentrl_jax/<name>.

  Blocks for as long as the build takes. Raises `ConfigError` with the end of
  the build's log if it fails.
  """
  tag = tag or f"agentrl_jax/{name}:latest"
  dockerfile = f"environments/{name}/Dockerfile"
  if not (root / dockerfile).is_file():
    known = sorted(
      p.parent.name for p in root.glob("environments/*/Dockerfile")
    )
    raise ConfigError(
      f"there is no {dockerfile}; environments with one: {', '.join(known)}"
    )
  try:
    engine.images.build(
      path=str(root),
      dockerfile=dockerfile,
      tag=tag,
      buildargs={} if base is None else {"BASE": base},
      rm=True,
      forcerm=True,
    )
  except docker.errors.BuildError as error:
    lines = [str(line.get("stream", "")).rstrip() for line in error.build_log]
    end = "\n".join([line for line in lines if line][-_LAST_LINES:])
    raise ConfigError(f"{dockerfile} does not build: {error}\n{end}") from error
  except docker.errors.APIError as error:
    raise ConfigError(f"{dockerfile} does not build: {error}") from error
  return tag


def main(arguments: Sequence[str] | None = None) -> None:
  """The command line."""
  logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
  parser = argparse.ArgumentParser(prog="python -m agentrl_jax.env.images")
  parser.add_argument("environment", nargs="+")
  parser.add_argument("--base", help="the image to build on")
  given = parser.parse_args(arguments)
  try:
    with engines.connect() as engine:
      for name in given.environment:
        tag = build_image(engine, name, base=given.base)
        _log.info("built %s", tag)
  except AgentRLError as error:
    parser.error(str(error))


if __name__ == "__main__":
  main()
