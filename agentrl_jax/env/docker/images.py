"""Builds the image of an environment's worker from its Dockerfile.

`python -m launch.build_images` is the command. The build context is the
repository, cut down by `.dockerignore`. Any base with Python 3.11 or newer, or
with an apt that has it, will do.
"""

import pathlib

import docker
import docker.errors

from agentrl_jax.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[3]
_LAST_LINES = 30  # of a failed build's log that go into the error


def environments_with_images(root: pathlib.Path = ROOT) -> list[str]:
  """The environments that have a Dockerfile, in order of name."""
  return sorted(p.parent.name for p in root.glob("environments/*/Dockerfile"))


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
    known = ", ".join(environments_with_images(root))
    raise ConfigError(
      f"there is no {dockerfile}; environments with one: {known}"
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
