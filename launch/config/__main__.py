"""Explains the keys of the config: defaults, values, and where each is read.

  python -m launch.config
  python -m launch.config --explain loss.clip_high
  python -m launch.config --explain queue

Without a key it prints all keys, a line each.
"""

import argparse
import sys

from agentrl_jax.errors import ConfigError
from launch.config.explain import explain, table


def main() -> None:
  """Prints what the command line asks for."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.config",
    description="Explains the keys of the config.",
  )
  parser.add_argument(
    "--explain", metavar="KEY", nargs="*", default=[], help="keys or sections"
  )
  keys = parser.parse_args().explain
  try:
    text = "\n\n".join(map(explain, keys)) if keys else table()
  except ConfigError as error:
    parser.error(str(error))
  sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
  main()
