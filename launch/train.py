"""Trains an agent from nothing and shows that it learned.

  python -m launch.train --config=configs/quickstart.py
  python -m launch.train --config=configs/quickstart.py --config.seed=1

Any key of the config can be set so; a misspelt one is refused. Starting the
same run again continues it from where it stopped, whatever stopped it.
"""

import sys
from collections.abc import Sequence

from absl import flags, logging

from agentrl_jax.errors import AgentRLError
from launch import command_line
from launch.run.training import train
from launch.shared_flags import CONFIG

flags.mark_flag_as_required("config")


def main(argv: Sequence[str]) -> None:
  """Runs the config of the command line; an error is one clear sentence."""
  del argv
  logging.set_verbosity(logging.WARNING)  # Orbax logs every file it writes
  try:
    train(CONFIG.value)
  except AgentRLError as error:
    sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
  command_line.run(main)
