"""Writes generated tasks as folders, which Harbor itself plays, too.

  python -m environments.harbor.write_folders DIR --num=20

Harbor needs the image of the tasks' Dockerfiles, which
`python -m launch.build_images os_interaction` builds.
"""

import argparse
import pathlib
from collections.abc import Sequence

from agentrl_jax.data.split import SPLITS
from agentrl_jax.errors import AgentRLError, ConfigError
from environments.harbor.generation import generate_files


def main(arguments: Sequence[str] | None = None) -> None:
  """Writes tasks as folders."""
  parser = argparse.ArgumentParser(
    prog="python -m environments.harbor.write_folders",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("folder", type=pathlib.Path, help="of the tasks' folders")
  parser.add_argument(
    "--num", type=int, default=20, help="tasks; 20 if left out"
  )
  parser.add_argument("--split", choices=SPLITS, default=SPLITS[0])
  given = parser.parse_args(arguments)
  try:
    for index in range(given.num):
      files = generate_files(given.split, index)
      root = given.folder / f"{given.split}-{index:03d}"
      if root.exists():
        raise ConfigError(f"{str(root)!r} exists; name another folder")
      for path, file in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(file.content)
        (root / path).chmod(file.mode)
  except AgentRLError as error:
    parser.error(str(error))


if __name__ == "__main__":
  main()
