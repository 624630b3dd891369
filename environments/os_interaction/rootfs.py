"""Creates the root folder of sandboxes.

  python -m environments.os_interaction.rootfs                 # from the image
  python -m environments.os_interaction.rootfs --debootstrap   # without Docker
  python -m environments.os_interaction.rootfs --to /srv/os_rootfs

The first copies the image that `python -m launch.build_images os_interaction`
built; the second installs Debian's packages, which takes two minutes. Both need
root, as files keep their owners. Sandboxes only read the folder.
"""

import argparse
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import docker
import docker.errors
from docker.models.containers import Container

from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.service.docker import engine as engines
from environments.os_interaction.machines.sandbox.engine import ROOTFS

_log = logging.getLogger(__name__)

HERE = pathlib.Path(__file__).parent
SUITE = "bookworm"
# The Dockerfile's packages.
PACKAGES = (
  "ca-certificates",
  "curl",
  "g++",
  "git",
  "passwd",
  "procps",
  "python3",
  "python3-pip",
  "tree",
  "unzip",
  "vim-tiny",
  "wget",
  "zip",
)
_MODIFIED = "2024-04-22"  # of root's files, as in the Dockerfile


def from_image(
  engine: docker.DockerClient, image: str, to: pathlib.Path
) -> None:
  """Copies the image's files to a folder that does not exist yet."""
  try:
    container = engine.containers.create(image, "true")
  except docker.errors.ImageNotFound as error:
    raise ConfigError(
      f"the engine has no image {image!r}; build it with "
      "`python -m launch.build_images os_interaction`"
    ) from error
  try:
    _fill(to, lambda folder: _unpack(container, folder))
  finally:
    container.remove(force=True)


def from_packages(to: pathlib.Path, *, mirror: str = "") -> None:
  """Installs Debian's packages into a folder that does not exist yet."""
  if shutil.which("debootstrap") is None:
    raise ConfigError(
      "debootstrap is not installed; run `apt-get install debootstrap`"
    )
  _fill(to, lambda folder: _bootstrap(folder, mirror))


def _fill(to: pathlib.Path, fill: Callable[[pathlib.Path], None]) -> None:
  """Fills a temporary folder and renames it to `to` when it is complete."""
  if os.geteuid() != 0:
    raise ConfigError("files keep their owners, so this must be run as root")
  if to.exists():
    raise ConfigError(f"{to} exists already; remove it, or choose another --to")
  to.parent.mkdir(parents=True, exist_ok=True)
  folder = pathlib.Path(tempfile.mkdtemp(prefix=".rootfs-", dir=to.parent))
  try:
    folder.chmod(0o755)
    fill(folder)
    folder.rename(to)
  except BaseException:
    shutil.rmtree(folder)
    raise


def _unpack(container: Container, folder: pathlib.Path) -> None:
  tar = subprocess.Popen(
    ["tar", "-x", "-p", "--numeric-owner", "-C", str(folder)],
    stdin=subprocess.PIPE,
  )
  assert tar.stdin is not None
  chunks: Any = container.export()  # yields bytes, unlike its type stub
  with tar.stdin:
    for chunk in chunks:
      tar.stdin.write(chunk)
  if tar.wait() != 0:
    raise ConfigError(f"tar failed with code {tar.returncode}; see above")


def _bootstrap(folder: pathlib.Path, mirror: str) -> None:
  command = ["debootstrap", "--variant=minbase"]
  command += [f"--include={','.join(PACKAGES)}", SUITE, str(folder)]
  done = subprocess.run([*command, *([mirror] if mirror else [])])
  if done.returncode != 0:
    raise ConfigError(
      f"debootstrap failed with code {done.returncode}; see above. Give "
      "another source of packages with --mirror"
    )
  root = folder / "root"
  shutil.copy(HERE / "bashrc", root / ".bashrc")
  (root / ".profile").write_text('if [ -n "$BASH" ]; then . ~/.bashrc; fi\n')
  paths = [str(root / ".bashrc"), str(root / ".profile"), str(root)]
  subprocess.run(["touch", "-d", _MODIFIED, *paths], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
  parser = argparse.ArgumentParser(
    prog="python -m environments.os_interaction.rootfs",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("--to", default=ROOTFS, help=f"by default {ROOTFS}")
  parser.add_argument("--image", default="agentrl_jax/os_interaction")
  parser.add_argument("--debootstrap", action="store_true")
  parser.add_argument("--mirror", default="", help="for --debootstrap")
  options = parser.parse_args(arguments)
  to = pathlib.Path(options.to).expanduser().resolve()
  try:
    if options.debootstrap:
      from_packages(to, mirror=options.mirror)
    else:
      with engines.connect() as engine:
        from_image(engine, options.image, to)
  except AgentRLError as error:
    parser.error(str(error))
  _log.info("created %s", to)


if __name__ == "__main__":
  main()
