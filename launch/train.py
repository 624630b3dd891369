"""Trains an agent from nothing and shows that it learned.

  python -m launch.train --config=configs/quickstart.py
  python -m launch.train --config=configs/quickstart.py --config.seed=1

Any key of the config can be set so; a misspelt one is refused. Starting the
same run again continues it from where it stopped, whatever stopped it.
"""

from absl import flags

from launch.config import command_line

CONFIG = command_line.define_config()

flags.mark_flag_as_required("config")


def main() -> None:
  """Runs the config of the command line."""
  # Help, and the refusal of a wrong flag, need not wait for all of a run.
  from launch.run.training import train

  train(CONFIG.value)


if __name__ == "__main__":
  command_line.run(main)
