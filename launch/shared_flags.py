"""Flags of several commands, defined once, whichever command is imported."""

from absl import flags
from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
  "config", None, "The experiment: a file whose get_config() returns it."
)
RUN = flags.DEFINE_string("run", None, "A run's folder.")
