"""Builds the images of environments; `launch.build_images` is the command.

The build context is the repository, cut down by `.dockerignore`. Images of
workers have a common base, built first from environments/Dockerfile; it begins
with any image that has Python 3.11 or newer, or an apt that installs it.
"""

import pathlib

import docker
import docker.errors

from agentrl_jax.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[1]
_LAST_LINES = 30  # of a failed build's log, for the error
_WORKER_BASE = "ARG BASE=agentrl_jax/worker:latest"


def environments_with_images(root: pathlib.Path = ROOT) -> list[str]:
  """Lists the environments that have a Dockerfile, in order of name."""
  return sorted(p.parent.name for p in root.glob("environments/*/Dockerfile"))


def build_image(
  engine: docker.DockerClient,
  name: str,
  *,
  base: str | None = None,
  registry: str = "agentrl_jax",
  root: pathlib.Path = ROOT,
) -> str:
  """Builds environments/<name>/Dockerfile; returns the tag <registry>/<name>.

  Blocks until the image is built; the image of a worker gets its base first.

  Args:
    engine: where the images are built.
    name: the environment's folder.
    base: the image below all others; None takes the Dockerfiles' default.
    registry: prefix of the tags.
    root: the build context.

  Raises `ConfigError` with the end of the build's log if the build fails.
  """
  dockerfile = f"environments/{name}/Dockerfile"
  if not (root / dockerfile).is_file():
    known = ", ".join(environments_with_images(root))
    raise ConfigError(
      f"there is no {dockerfile}; environments with one: {known}"
    )
  if _WORKER_BASE in (root / dockerfile).read_text().splitlines():
    base = build_worker_base(engine, base=base, registry=registry, root=root)
  tag = f"{registry}/{name}:latest"
  _build(engine, root, dockerfile, tag, base=base)
  return tag


def build_worker_base(
  engine: docker.DockerClient,
  *,
  base: str | None = None,
  registry: str = "agentrl_jax",
  root: pathlib.Path = ROOT,
) -> str:
  """Builds the base of the workers' images and returns its tag.

  The stage before the framework's code gets the same tag with "-packages".
  Arguments and errors are those of `build_image`.
  """
  tag = f"{registry}/worker:latest"
  dockerfile = "environments/Dockerfile"
  _build(
    engine, root, dockerfile, f"{tag}-packages", base=base, target="packages"
  )
  _build(engine, root, dockerfile, tag, base=base)
  return tag


def _build(
  engine: docker.DockerClient,
  root: pathlib.Path,
  dockerfile: str,
  tag: str,
  *,
  base: str | None,
  target: str = "",
) -> None:
  try:
    engine.images.build(
      path=str(root),
      dockerfile=dockerfile,
      tag=tag,
      target=target,
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
