"""Admission and queue of the controller."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `admission` and `queue`."""
  return create(
    admission=create(
      versions_per_step=1,  # updates that the learner makes of a batch
      # Groups without a signal that others replace before they are trained on,
      # per batch; 0: none. With advantage.keep="signal" this is DAPO's dynamic
      # sampling. success/<task> then leaves the replaced groups out, and
      # rollout/success/<task> does not.
      refills_per_step=0,
    ),
    queue=create(
      # Order of a batch's groups: finished; or started, in which batches do not
      # depend on timing, at the price of waiting.
      order="finished",
      # Versions from the start of a group to its use, at most; not below
      # admission.max_staleness. The learner waits for a group that would be
      # older. -1: any age, and no wait.
      max_age=8,
      # Steps that the learner waits for such a group at most: it is then handed
      # over with the episodes that have ended. So is one of the last quarter of
      # a batch, once it has been played three times as long as the longest of
      # its task's latest.
      patience=0.25,
    ),
  )
