"""Signs that the policy collapses: docs/reading_a_run.md."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `mutual_information` and `collapse_alarm`."""
  return create(
    mutual_information=create(  # of answers and prompts
      every=0,  # updates between measurements; 0: none
      num_answers=64,  # answers scored under the prompts of their tasks
      max_tokens=256,  # tokens of an answer that are scored, from its beginning
    ),
    collapse_alarm=create(
      action="warn",  # or off; or stop, which ends the run with a checkpoint
      # Batches at the start whose mean std of rewards is the norm.
      first_batches=10,
      # Alarm when the mean std of rewards within a group stays below this share
      # of that of the first batches; 0: no such alarm.
      std_share=0.1,
      std_batches=10,  # batches in a row until the alarm of std_share
      # Alarm when the share of a batch's episodes that succeed stays below
      # this; 0: no such alarm.
      min_success=0.01,
      success_batches=50,  # batches in a row until the alarm of min_success
      # Batches in a row in which no tool call of an environment's answers can
      # be read, until an alarm; 0: no such alarm.
      call_batches=5,
      # Alarm when the policy's entropy stays below this share of its mean over
      # the first batches; 0: no such alarm.
      entropy_share=0.05,
      entropy_batches=10,  # batches in a row until the alarm of entropy_share
    ),
  )
