"""Builds the images of environments, all of them or those named.

  python -m launch.build_images
  python -m launch.build_images dbbench webshop --base python:3.11-slim
  python -m launch.build_images --list

Workers' images have a common base, environments/Dockerfile, which is built
first. `--base` names the image below it, which must have Python 3.11 or newer,
or an apt that installs it. If an image fails to build, the others are built all
the same, and the command fails at the end.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import docker
from rich.table import Table

from agentrl_jax.errors import AgentRLError, ConfigError, suggestion
from agentrl_jax.service.docker import engine as engines
from environments.images import build_image, environments_with_images
from launch.processes.terminal import plain_console

CONSOLE = plain_console()


def build_all(
  engine: docker.DockerClient,
  names: Sequence[str],
  *,
  base: str | None,
  registry: str,
) -> list[str]:
  """Builds one image after the other, with times; returns those that failed."""
  failed = []
  for name in names:
    started_at = time.monotonic()
    try:
      CONSOLE.print(f"building {name}")
      tag = build_image(engine, name, base=base, registry=registry)
    except ConfigError as error:
      failed.append(name)
      CONSOLE.print(f"{name} failed: {error}", soft_wrap=True)
      continue
    megabytes = engine.images.get(tag).attrs["Size"] / 1e6
    seconds = time.monotonic() - started_at
    CONSOLE.print(
      f"{tag}  {megabytes:,.0f} MB, {seconds:.0f} s", soft_wrap=True
    )
  return failed


def show(engine: docker.DockerClient, registry: str) -> None:
  """Prints the environments that have an image, and whether it is built."""
  table = Table("environment", "image", "MB", "built")
  for name in environments_with_images():
    tag = f"{registry}/{name}:latest"
    found = engine.images.list(tag)
    if found:
      built = found[0].attrs["Created"][:19].replace("T", " ")
      table.add_row(name, tag, f"{found[0].attrs['Size'] / 1e6:,.0f}", built)
    else:
      table.add_row(name, tag, "", "no")
  CONSOLE.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and builds."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.build_images", description=__doc__.partition("\n")[0]
  )
  parser.add_argument("environment", nargs="*", help="all, if none is named")
  parser.add_argument("--base", help="the image below all others")
  parser.add_argument(
    "--registry", default="agentrl_jax", help="what tags begin with"
  )
  parser.add_argument("--list", action="store_true", help="builds nothing")
  given = parser.parse_args(arguments)
  known = environments_with_images()
  for name in given.environment:
    if name not in known:
      parser.error(
        f"{name} is not one of {', '.join(known)}{suggestion(name, known)}"
      )
  try:
    with engines.connect() as engine:
      if given.list:
        show(engine, given.registry)
        return
      failed = build_all(
        engine,
        given.environment or known,
        base=given.base,
        registry=given.registry,
      )
  except AgentRLError as error:
    parser.error(str(error))
  if failed:
    sys.exit(f"not built: {', '.join(failed)}; the end of each log is above")


if __name__ == "__main__":
  main()
