"""Signs that the policy collapses: docs/reading_a_run.md."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `collapse_alarm`."""
  return create(
    collapse_alarm=create(
      action="warn",  # or off; or stop, which ends the run with a checkpoint
      # Alarm when the mean std of rewards within a group stays below this share
      # of that of the first 10 batches for 10 batches; 0: no such alarm.
      std_share=0.1,
      # Alarm when the share of a batch's episodes that succeed stays below
      # this for 50 batches; 0: no such alarm.
      min_success=0.01,
      # Alarm when the policy's entropy stays below this share of its mean over
      # the first 10 batches for 10 batches; 0: no such alarm.
      entropy_share=0.05,
    )
  )
