"""Explains the keys of the config: defaults, values, and where each is read.

  python -m launch.config
  python -m launch.config --explain loss.clip_high
  python -m launch.config --explain queue
  python -m launch.config --config=configs/quickstart.py --config.seed=1

Without a key it prints all keys, a line each. With --config they are those of
that config, with its values; `*` marks one that is not the default.
"""

import argparse
import sys

from agentrl_jax.errors import ConfigError
from configs import base
from launch.config.command_line import load_config
from launch.config.explain import explain, table


def main() -> None:
  """Prints what the command line asks for."""
  parser = argparse.ArgumentParser(
    prog="python -m launch.config",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    "--explain", metavar="KEY", nargs="*", default=[], help="keys or sections"
  )
  parser.add_argument("--config", help="file of a config, as of launch.train")
  options, overrides = parser.parse_known_args()
  try:
    if options.config is None:
      if overrides:
        raise ConfigError(f"{overrides[0]} takes a config: --config=FILE")
      config = base.get_config()
    else:
      config = load_config([f"--config={options.config}", *overrides])
    keys = options.explain
    text = [explain(key, config) for key in keys] if keys else [table(config)]
  except ConfigError as error:
    parser.error(str(error))
  sys.stdout.write("\n\n".join(text) + "\n")


if __name__ == "__main__":
  main()
